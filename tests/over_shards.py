"""The tests that hold the surface of a store, run once more over clusters; and what a cluster does not do, and why.

Clusters are made in the place of stores, where a test opens one that is not there. Tests are not changed for it.
"""

import os
from collections.abc import Callable
from typing import Any

import softkv
from softkv.doors.cluster.handle import create

_FILES = "mapping columns loading handle intake evaluating upkeep_by_filter"
SURFACE = (*(f"test_{name}" for name in _FILES.split()), "test_examples::test_books")
OF_ALL = ("value", "compatibility", "temperature")  # options of a new store, and of a new cluster
ORDER = "items are in the order of the shards, and not in that in which they were added"
NAMES = "an item without a key is named by its number in its shard and the number of that"
FILES = "it looks into the files of one store, or damages them"
COMMITS = "a commit of a cluster is the sum of those of its shards, of which one change makes several"
REFUSED = {
    "test_all_items_come_as_from_a_dict": NAMES,
    "test_many_keys_are_asked_for_as_one_is_after_all_were_listed": NAMES,
    "test_many_keys_lead_to_no_dead_row": FILES,
    "test_a_damaged_row_is_noticed_by_all_who_read_it": FILES,
    "test_a_text_that_is_missing_is_damage": FILES,
    "test_columns_stay_at_their_commit": ORDER,
    "test_numbers_are_measured_in_every_way": ORDER,
    "test_numbers_that_are_read_off_planes_are_measured_so": "planes of shards do not merge",
    "test_what_matches_is_deleted_in_one_commit": COMMITS,
    "test_what_matches_is_given_a_value": ORDER,
    "test_what_was_given_comes_back": ORDER,
    "test_columns_of_a_table_are_taken_by_place": ORDER,
    "test_many_items_are_updated_in_one_commit": COMMITS,
    "test_one_item_is_added_like_many": NAMES,
    "test_what_was_exported_comes_back": "sums of shards are rounded otherwise than those of one store",
    "test_a_database_does_what_a_dict_does": ORDER,
    "test_a_file_becomes_the_items_that_the_command_makes_of_it": ORDER,
    "test_a_reader_finds_the_temperature_that_the_writer_leaves": NAMES,
    "test_a_writer_waits_for_another_one": "a cluster is not started anew (mode 'n')",
    "test_what_was_stored_before_an_error_stays_and_the_error_says_how_to_go_on": ORDER,
    "test_after_an_uncertain_commit_the_error_says_how_to_add_each_record_once": FILES,
}


def runs(module: str, test: str) -> bool:
    """Whether a test is about what a cluster does as a store does it."""
    return test not in REFUSED and (module in SURFACE or f"{module}::{test}" in SURFACE)


def opening(shards: int) -> Callable[..., Any]:
    """`softkv.open`, which makes a cluster of so many shards where there is no store."""
    open_store = softkv.open

    def opened(path: Any, mode: str = "c", **options: Any) -> Any:
        if mode in ("c", "n") and not str(path).startswith("http") and not os.path.lexists(path):
            create(path, shards, **{name: one for name, one in options.items() if name in OF_ALL})
            mode = "c"
        return open_store(path, mode, **options)

    return opened
