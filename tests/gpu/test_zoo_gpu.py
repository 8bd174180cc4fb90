"""The zoo on the GPU: every case from end to end, each in its own process, for a lost capture can poison a library."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.gpu.world import in_process
from tests.zoo.cases import Case, all_cases

pytest.importorskip('cupy')
pytest.importorskip('cuda.bindings')
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize('case', [pytest.param(case, id=str(case)) for case in all_cases()])
def test_a_case_from_end_to_end(case: Case) -> None:
    if case.module and importlib.util.find_spec(case.module) is None:
        pytest.skip(f'{case.module} is not installed')
    if sys.version_info < case.since:
        pytest.skip(f'from Python {case.since[0]}.{case.since[1]} on')
    assert in_process(f'from tests.zoo.trial import whole\nprint(whole({case.name!r}))').splitlines()[-1] == 'whole'
