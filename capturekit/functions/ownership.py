"""Who owns a module or a class: the user, or a library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from capturekit.functions.readable_state import in_package, is_in_its_module, only_checks_types
from capturekit.functions.understood import module_of
from capturekit.model.class_layout import dictionary_of_class, made_by_class_statement

_MODULE_DICT = vars(ModuleType)['__dict__'].__get__


class Ownership:
    """Tells the user's modules and classes from others. ``skip`` returns True for files whose code isn't followed."""

    def __init__(self, skip: Callable[[str], bool]) -> None:
        self.skip = skip

    def is_foreign_module(self, module: ModuleType) -> bool:
        """True for modules that aren't the user's."""
        members = _MODULE_DICT(module)
        return self._foreign_name(members.get('__name__'), members)

    def _foreign_name(self, name: object, members: dict[str, Any] | None) -> bool:
        """True for the names of modules that aren't the user's."""
        if type(name) is not str or name == '__main__':
            return False
        if name in sys.builtin_module_names or name.partition('.')[0] in ('cupy', 'cupyx', 'cupy_backends', 'numpy'):
            return True
        if members is None:
            module = sys.modules.get(name)
            members = _MODULE_DICT(module) if type(module) is ModuleType else {}
        file = members.get('__file__')
        return type(file) is str and self.skip(file)

    def is_foreign_class(self, cls: type) -> bool:
        """True for classes that aren't the user's."""
        if not made_by_class_statement(cls) or only_checks_types(cls):
            return True
        if not self._foreign_name(module_of(cls), None):
            return False
        return is_in_its_module(cls) or (in_package(cls) and not self._has_code_of_user(cls))

    def _has_code_of_user(self, cls: type) -> bool:
        """Whether a class that is not in the module which it names has a method of the user's."""
        members = dictionary_of_class(cls).values()
        return any(type(one) is FunctionType and not self.skip(one.__code__.co_filename) for one in members)
