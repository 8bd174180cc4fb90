"""Functions and modules stay short and flat. What is longer stands in a list, with its number, and may only shrink."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES_OF_A_FUNCTION, DEPTH, LINES_OF_A_MODULE, LINES_OF_A_TEST_FILE, LENGTH_OF_A_NAME = 40, 4, 500, 600, 60
#: A literal of so many lines at the top of a module is a table, and its lines do not count.
TABLE = 6
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: The lines of functions that are still too long.
LONG_FUNCTIONS: dict[str, int] = {
    'capturekit/functions/decorator.py: Graphed.__call__': 50,
    'capturekit/functions/decorator.py: Graphed._rehearse': 54,
    'capturekit/functions/decorator.py: Graphed._record': 41,
    'capturekit/functions/environment.py: Environment._prepare': 41,
    'capturekit/functions/variant.py: VariantRecorder._close': 45,
    'capturekit/functions/variant.py: VariantRecorder._runner': 74,
}
#: How deep blocks are still nested, where that is too deep.
DEEP_FUNCTIONS: dict[str, int] = {
    'capturekit/functions/decorator.py: Graphed.__call__': 5,
}
#: The lines of modules that are still too long, their tables not counted.
LONG_MODULES: dict[str, int] = {
    'capturekit/analysis/concurrency.py': 504,
    'capturekit/functions/decorator.py': 527,
    'capturekit/functions/variant.py': 507,
    'capturekit/guard/lint_guard.py': 557,
}
#: The lines of test files that are still too long, their tables not counted.
LONG_TEST_FILES: dict[str, int] = {
    'tests/functions/test_decorator.py': 1350,
    'tests/functions/test_environment.py': 889,
    'tests/gpu/coverage/names.py': 984,
    'tests/gpu/test_entry_points.py': 1209,
    'tests/graph/test_edit.py': 710,
    'tests/graph/test_update.py': 689,
    'tests/guard/test_devices.py': 721,
    'tests/guard/test_entry_points.py': 648,
    'tests/lab/test_lint.py': 750,
    'tests/recorder/test_conditional.py': 626,
    'tests/recorder/test_rehearsal.py': 1047,
    'tests/simulated/test_contract.py': 1368,
    'tests/simulated/test_standin.py': 1066,
}
#: The lengths of test names that are still too long.
LONG_TEST_NAMES: dict[str, int] = {
    'tests/agreement/test_agreement.py: test_simulated_device_and_topology_agree_with_recorded_driver_traces': 68,
    'tests/analysis/test_concurrency.py: test_independent_work_on_one_lane_is_named_where_the_second_begins': 66,
    'tests/analysis/test_concurrency.py: test_a_kernel_that_fills_the_device_with_nothing_beside_it_is_none': 66,
    'tests/analysis/test_races.py: test_an_input_that_overlaps_with_the_output_is_a_copy_that_takes_part': 69,
    'tests/analysis/test_races.py: test_a_kernel_of_the_users_is_a_possible_race_until_it_is_observed': 66,
    'tests/analysis/test_races.py: test_two_kernels_that_get_one_array_and_use_each_its_half_are_no_certain_race': 77,
    'tests/analysis/test_races.py: test_a_race_that_makes_no_difference_is_told_without_an_order': 61,
    'tests/analysis/test_races.py: test_bodies_of_decisions_are_searched_and_ordered_with_what_is_around': 69,
    'tests/analysis/test_races.py: test_many_small_arrays_that_are_joined_are_refused_by_name_or_joined_in_groups': 78,
    'tests/analysis/test_races.py: test_where_nodes_can_not_be_read_only_those_who_ask_get_an_error': 64,
    'tests/analysis/test_verify.py: test_all_that_lies_free_in_a_graphs_memory_is_handed_out_and_no_more': 68,
    'tests/analysis/test_verify.py: test_what_eager_runs_left_is_poisoned_and_the_pool_grows_little': 63,
    'tests/driver/test_event_timing.py: test_edges_that_let_a_kernel_begin_early_are_removed_with_their_data': 68,
    'tests/driver/test_node_accesses.py: test_of_what_goes_nobody_knows_how_far_only_what_is_sure_is_shared': 66,
    'tests/driver/test_node_accesses.py: test_elements_of_a_size_that_is_not_known_share_their_first_bytes_at_least': 74,
    'tests/driver/test_node_accesses.py: test_an_element_of_unknown_size_is_no_larger_than_the_step_to_the_next': 70,
    'tests/driver/test_node_accesses.py: test_of_other_kernels_every_word_that_may_be_an_address_is_one': 62,
    'tests/driver/test_node_accesses.py: test_a_kernel_that_nobody_holds_any_more_is_known_by_its_function': 65,
    'tests/driver/test_node_accesses.py: test_a_kernel_that_only_has_the_name_of_one_of_cupys_is_not_taken_for_it': 72,
    'tests/functions/test_aiming.py: test_where_nodes_can_not_be_aimed_the_answer_is_right_all_the_same': 66,
    'tests/functions/test_decorator.py: test_a_callback_of_the_garbage_collector_is_no_part_of_a_function': 65,
    'tests/functions/test_environment.py: test_containers_are_compared_inside_and_writing_to_them_is_told': 63,
    'tests/functions/test_environment.py: test_a_failure_of_the_watch_is_told_and_does_not_reach_the_function': 67,
    'tests/functions/test_reads.py: test_numpys_functions_are_understood_but_for_settings_and_files': 63,
    'tests/gpu/test_entry_points.py: test_every_verb_is_refused_somewhere_and_allowed_somewhere_or_always_one_of_them': 80,
    'tests/gpu/test_exit_gpu.py: test_the_allocator_and_the_stream_that_were_set_are_set_again': 61,
    'tests/gpu/test_experiment_gpu.py: test_an_eager_array_of_a_lane_is_not_overwritten_while_another_stream_reads_it': 78,
    'tests/gpu/test_memory_gpu.py: test_on_bare_cupy_a_block_is_handed_out_while_another_lane_reads_it': 67,
    'tests/gpu/test_memory_gpu.py: test_with_capturekit_the_block_is_kept_while_another_lane_reads_it': 66,
    'tests/gpu/test_memory_gpu.py: test_a_block_is_kept_while_a_library_reads_it_by_a_handle_it_has_had_for_long': 77,
    'tests/gpu/test_threads_gpu.py: test_another_threads_wait_for_the_device_waits_for_the_capture': 62,
    'tests/gpu/test_threads_gpu.py: test_two_threads_that_hold_captures_and_wait_for_the_device_are_both_refused': 76,
    'tests/gpu/test_threads_gpu.py: test_another_thread_may_not_touch_the_captures_streams_and_events': 65,
    'tests/graph/test_edit.py: test_the_graph_that_was_instantiated_lives_as_long_as_its_executable_graph': 74,
    'tests/graph/test_edit.py: test_nodes_are_found_where_an_update_has_paired_them_by_another_order': 69,
    'tests/graph/test_edit.py: test_an_executable_graph_is_made_anew_when_nodes_are_changed_after_an_update': 76,
    'tests/graph/test_update.py: test_arrays_of_before_keep_their_memory_and_are_no_longer_written': 65,
    'tests/graph/test_update.py: test_the_order_of_edges_to_a_node_is_told_where_nothing_else_is': 63,
    'tests/graph/test_update.py: test_an_update_equals_a_fresh_recording_or_leaves_the_old_graph_working': 71,
    'tests/guard/test_by_hand.py: test_what_the_host_asks_meanwhile_is_answered_for_the_legacy_stream': 67,
    'tests/guard/test_collectives.py: test_a_lane_of_another_device_than_the_communicators_is_refused': 63,
    'tests/guard/test_devices.py: test_a_graph_of_several_devices_is_launched_on_a_stream_of_any': 62,
    'tests/guard/test_devices.py: test_an_exception_in_another_devices_lane_leaves_all_as_it_was': 62,
    'tests/guard/test_devices.py: test_another_thread_waits_for_its_own_device_and_not_for_the_capture': 68,
    'tests/guard/test_devices.py: test_the_warning_of_another_device_can_be_told_by_name_without_the_standin': 74,
    'tests/guard/test_entry_points.py: test_a_copy_of_the_runtime_is_guarded_from_where_it_is_imported': 63,
    'tests/guard/test_entry_points.py: test_importing_a_module_leaves_what_its_package_has_under_that_name': 67,
    'tests/guard/test_threads.py: test_ordinary_work_of_another_thread_goes_on_and_is_not_recorded': 64,
    'tests/guard/test_threads.py: test_unsafe_calls_of_another_thread_do_not_lose_a_global_capture': 64,
    'tests/guard/test_threads.py: test_a_thread_that_stays_on_a_lane_too_long_gets_its_allocator_back': 67,
    'tests/guard/test_verdicts.py: test_a_call_on_an_outside_stream_is_made_on_the_stream_itself': 61,
    'tests/guard/test_verdicts.py: test_memory_from_a_pool_by_hand_is_as_that_from_the_default_one': 63,
    'tests/launch/test_condition_kernel.py: test_launches_of_several_threads_have_conditions_of_their_own': 61,
    'tests/launch/test_graph_memory.py: test_what_garbage_collection_drops_while_a_block_is_looked_for_waits': 68,
    'tests/launch/test_graph_memory.py: test_random_programs_on_four_lanes_give_the_eager_result_in_every_order': 71,
    'tests/launch/test_graph_memory.py: test_memory_allocated_outside_of_the_capture_is_not_handed_out_again': 68,
    'tests/launch/test_lane_memory.py: test_a_stream_that_was_current_elsewhere_before_it_was_a_lane': 61,
    'tests/launch/test_lane_memory.py: test_work_that_nobody_could_see_coming_is_noted_whoever_finds_it': 64,
    'tests/model/test_dag.py: test_the_sequence_has_each_node_once_and_behind_all_before_it': 61,
    'tests/model/test_ledger.py: test_the_last_node_tells_apart_no_node_a_lost_capture_and_none': 62,
    'tests/model/test_ledger.py: test_a_lane_is_open_while_it_is_current_or_until_the_next_event': 63,
    'tests/model/test_ledger.py: test_a_capture_that_is_over_twice_leaves_the_next_one_on_its_stream': 67,
    'tests/model/test_ledger.py: test_only_the_legacy_stream_is_answered_by_how_the_origin_was_made': 66,
    'tests/model/test_measured.py: test_the_commands_operations_are_those_of_the_table_in_the_files_order': 70,
    'tests/model/test_recording.py: test_an_exception_of_the_blocks_own_is_found_where_it_was_raised': 64,
    'tests/model/test_rules.py: test_every_measured_operation_has_a_row_and_every_row_was_measured': 66,
    'tests/model/test_rules.py: test_every_driver_that_was_measured_is_named_and_every_one_that_is_named_was_measured': 85,
    'tests/recorder/test_branches.py: test_an_assignment_covers_each_branch_once_and_leaves_no_lane_empty': 67,
    'tests/recorder/test_branches.py: test_eager_lanes_are_used_again_by_forks_of_the_same_stream_only': 64,
    'tests/recorder/test_conditional.py: test_work_on_another_lane_between_branches_is_refused_as_well': 61,
    'tests/recorder/test_conditional.py: test_what_no_body_can_hold_is_refused_and_the_rest_is_a_good_graph': 66,
    'tests/recorder/test_conditional.py: test_a_driver_that_is_too_old_says_so_and_the_capture_goes_on': 61,
    'tests/recorder/test_corners.py: test_a_block_touched_by_name_is_remembered_beyond_the_next_event': 64,
    'tests/recorder/test_corners.py: test_a_thread_with_a_capture_does_not_wait_for_another_to_use_the_legacy_stream': 79,
    'tests/recorder/test_embed.py: test_the_guides_diamond_explicitly_recorded_and_half_and_half': 61,
    'tests/recorder/test_priorities.py: test_a_capture_begun_by_hand_says_that_cupy_does_not_heed_them': 62,
    'tests/recorder/test_priorities.py: test_higher_priorities_run_first_mostly_and_every_order_comes': 61,
    'tests/recorder/test_rehearsal.py: test_other_arguments_of_the_same_shape_are_recorded_and_checked': 63,
    'tests/recorder/test_rehearsal.py: test_a_launch_gives_the_eager_result_or_says_which_read_differs': 63,
    'tests/recorder/test_teardown.py: test_the_bodys_exception_arrives_also_when_the_capture_is_lost': 62,
    'tests/render/test_failed.py: test_the_page_of_a_failed_capture_begins_with_the_error_and_its_line': 68,
    'tests/simulated/test_address_space.py: test_a_finalizer_during_a_look_up_neither_waits_nor_moves_what_is_looked_up': 75,
    'tests/simulated/test_address_space.py: test_what_garbage_collection_gives_back_to_a_pool_waits_until_it_is_not_looked_through': 86,
    'tests/simulated/test_contract.py: test_the_legacy_stream_beside_a_non_blocking_one_runs_at_once': 61,
    'tests/simulated/test_contract.py: test_the_priorities_of_nodes_can_not_change_where_they_are_heeded': 65,
    'tests/simulated/test_contract.py: test_the_order_of_last_nodes_of_different_kinds_does_not_matter': 63,
    'tests/simulated/test_contract.py: test_copies_may_change_to_memory_of_another_type_by_an_update': 61,
    'tests/simulated/test_contract.py: test_an_executable_graph_takes_over_a_node_of_another_definition': 64,
    'tests/simulated/test_curand.py: test_a_recorded_kernel_repeats_its_seed_and_reads_one_from_the_device': 69,
    'tests/simulated/test_standin.py: test_replacing_a_runtime_function_is_seen_by_its_callers_only': 61,
    'tests/simulated/test_standin.py: test_a_graph_that_misses_an_edge_gives_wrong_numbers_for_some_order': 67,
    'tests/simulated/test_standin.py: test_host_transfers_are_refused_by_cupys_words_and_the_capture_stays_good': 73,
    'tests/simulated/test_stream_queues.py: test_the_call_after_the_first_of_a_recording_on_another_stream': 62,
    'tests/test_mutation.py: test_the_page_is_made_of_the_results_and_its_reasons_are_of_use': 63,
    'tests/test_results.py: test_every_guarded_call_of_the_committed_table_left_the_capture_good': 68,
    'tests/test_soak.py: test_a_sanitizer_that_finds_something_or_can_find_nothing_is_told': 65,
}
#: How often a test reads a private attribute of an object that is not its own.
PRIVATE_READS = 273


def sources(folder: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / folder).rglob('*.py')):
        yield path.relative_to(ROOT).as_posix(), path.read_text()


def functions_of(tree: ast.AST, inside: str = '') -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            name = f'{inside}.{node.name}' if inside else node.name
        if isinstance(node, _FUNCTIONS):
            yield name, node
        yield from functions_of(node, name)


def depth_of(node: ast.AST, depth: int = 0) -> int:
    """How many blocks lie inside each other in a function. An ``elif`` is as deep as its ``if``."""
    deepest = depth
    for field, value in ast.iter_fields(node):
        for inner in value if isinstance(value, list) else ():
            if not isinstance(inner, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                continue
            if isinstance(inner, (*_FUNCTIONS, ast.ClassDef)):
                continue
            is_elif = isinstance(node, ast.If) and field == 'orelse' and isinstance(inner, ast.If) and len(value) == 1
            deepest = max(deepest, depth_of(inner, depth + (isinstance(inner, _BLOCKS) and not is_elif)))
    return deepest


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def lines_of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function without its docstring, which for a public one says a lot."""
    has_text = ast.get_docstring(node, clean=False) is not None
    return lines_of(node) - (lines_of(node.body[0]) if has_text else 0)


def lines_of_module(text: str) -> int:
    """The lines of a module without its tables."""
    tables = [node for node in ast.parse(text).body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return len(text.splitlines()) - sum(lines for lines in map(lines_of, tables) if lines >= TABLE)


def off(found: Iterator[tuple[str, int]], limit: int, exceptions: dict[str, int]) -> list[str]:
    """What is over the limit and over its exception, and exceptions that nothing needs any more."""
    over = {name: number for name, number in found if number > limit}
    grown = [f'{name} has {number}' for name, number in over.items() if number > exceptions.get(name, limit)]
    return grown + [f'{name} needs no exception' for name in exceptions if name not in over]


def functions_in(folder: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, text in sources(folder):
        for name, node in functions_of(ast.parse(text)):
            yield f'{path}: {name}', node


def test_functions_are_short() -> None:
    found = ((name, lines_of_function(node)) for name, node in functions_in('capturekit'))
    assert off(found, LINES_OF_A_FUNCTION, LONG_FUNCTIONS) == []


def test_functions_are_flat() -> None:
    found = ((name, depth_of(node)) for name, node in functions_in('capturekit'))
    assert off(found, DEPTH, DEEP_FUNCTIONS) == []


def test_modules_are_short() -> None:
    found = ((path, lines_of_module(text)) for path, text in sources('capturekit'))
    assert off(found, LINES_OF_A_MODULE, LONG_MODULES) == []


def test_test_files_are_short() -> None:
    found = ((path, lines_of_module(text)) for path, text in sources('tests'))
    assert off(found, LINES_OF_A_TEST_FILE, LONG_TEST_FILES) == []


def test_names_of_tests_are_short() -> None:
    found = ((name, len(node.name)) for name, node in functions_in('tests') if node.name.startswith('test_'))
    assert off(found, LENGTH_OF_A_NAME, LONG_TEST_NAMES) == []


def private_reads(text: str) -> Iterator[ast.Attribute]:
    """Reads of ``thing._name``, where ``thing`` is neither the test's own ``self`` or ``cls`` nor a double underscore."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr.startswith('_') and not node.attr.startswith('__'):
            if not (isinstance(node.value, ast.Name) and node.value.id in ('self', 'cls')):
                yield node


def test_tests_use_public_names() -> None:
    found = [f'{path}:{node.lineno} {node.attr}' for path, text in sources('tests') for node in private_reads(text)]
    assert len(found) <= PRIVATE_READS, found


def test_the_measures_see_what_they_are_for() -> None:
    text = 'def f():\n    """Text."""\n    if 1:\n        for _ in ():\n            pass\n    elif 2:\n        pass\n    else:\n        x._y\n'
    ((_, function),) = functions_of(ast.parse(text))
    assert (lines_of_function(function), depth_of(function), lines_of_module(text)) == (8, 2, 9)
    assert [node.attr for node in private_reads(text)] == ['_y']
    assert off(iter([('f', 8), ('g', 9)]), 7, {'f': 8, 'h': 9}) == ['g has 9', 'h needs no exception']
    assert lines_of_module('a = 1\nTABLE = [\n' + '    1,\n' * 5 + ']\n') == 1
