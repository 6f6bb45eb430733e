"""Which tests `make quick` leaves out and takes in, beside what their markers say."""

from __future__ import annotations

# Files, or functions that take a second or more for all their parameters. `make test` runs them.
SLOW = (
    "bench/cluster/test_choice.py",
    "bench/cluster/test_strategies.py",
    "bench/test_programs.py::test_programs_explain_themselves",
    "csrc/calibrate/test_input_moments.py::test_moments_of_many_rows_alike_do_not_drift",
    "csrc/kv/test_kv_cache_model.py",
    "csrc/sample/test_sampler.py::test_shortcuts_over_a_large_vocabulary_change_nothing",
    "csrc/sample/test_verify.py::test_counts_of_two_tokens",
    "csrc/sample/test_verify.py::test_law_of_two_tokens_for_any_laws",
    "csrc/sample/test_verify.py::test_law_of_two_tokens_over_all_drafts",
    "formats/test_gguf_malformed.py::test_a_damaged_file_loads_or_is_refused",
    "formats/test_gguf_malformed.py::test_every_prefix_of_a_valid_file_is_refused",
    "formats/test_malformed.py::test_most_say_where_what_was_expected_and_found",
    "formats/test_torch.py::test_a_mutated_file_opens_or_is_refused",
    "pyflow/cli/quantize/test_folder.py::test_an_interruption_leaves_what_was_there",
    "pyflow/cli/quantize/test_folder.py::test_memory_stays_far_below_the_size_of_the_model",
    "pyflow/cli/quantize/test_folder.py::test_transformers_name_the_method_and_do_not_load_it",
    "pyflow/cli/quantize/test_folder_to_gguf.py::test_an_interruption_leaves_nothing",
    "pyflow/cli/quantize/test_folder_to_gguf.py::test_options_do_what_they_do_for_files",
    "pyflow/cli/test_cli.py::test_doctor_says_what_it_found",
    "pyflow/cli/test_cli.py::test_prefetches_are_those_asked_for",
    "pyflow/cli/test_cli.py::test_variables_of_any_bytes_are_refused_in_one_line",
    "pyflow/cluster/planning/test_plan.py::test_no_split_is_better",
    "pyflow/cluster/planning/test_plan.py::test_splits_by_hand_are_predicted",
    "pyflow/cluster/planning/test_predict.py::test_good_guesses_fill_a_deep_pipeline_and_the_head_is_no_stage_then",
    "pyflow/cluster/planning/test_predict.py::test_guesses_that_are_never_right_are_not_made",
    "pyflow/cluster/planning/test_predict.py::test_the_same_profiles_give_the_same_choice",
    "pyflow/cluster/test_automatic.py::test_a_draft_model_on_a_rank_of_its_own_leaves_the_first_rank_its_layers",
    "pyflow/cluster/test_automatic.py::test_a_job_learns_from_those_before_and_nothing_changes_while_guesses_do_not",
    "pyflow/cluster/test_automatic.py::test_what_was_given_up_is_tried_again_after_some_jobs_and_not_at_every_one",
    "pyflow/cluster/wire/test_codec.py::test_a_message_comes_back_as_it_was",
    "pyflow/cluster/wire/test_codec.py::test_changed_fields_are_refused_or_make_another_message",
    "pyflow/cluster/wire/test_codec.py::test_every_flipped_byte_is_refused",
    "pyflow/gguf_export/test_gguf_tokenizer.py",
    "pyflow/specs/test_check.py::test_the_proof_of_the_documentation",
    "pyflow/specs/test_damaged_files.py::test_config_json",
    "pyflow/test_quantize_at_load.py::test_what_quantize_writes_is_also_loaded_into",
    "pyflow/test_quantize_folder.py::test_every_family_is_that_of_quantizing_while_loading",
    "pyflow/test_quantize_folder.py::test_every_format_runs_from_a_folder",
    "pyflow/tokenizer/test_damaged_files.py::test_older_files",
    "pyflow/tokenizer/test_sentencepiece.py::test_any_text_gives_the_ids_of_the_library",
    "pyflow/tokenizer/test_sentencepiece.py::test_flipped_bits_are_read_or_refused",
    "pyflow/tokenizer/test_tokenizer_json.py::test_a_control_token_in_plain_text_is_text",
    "pyflow/tokenizer/test_tokenizer_json.py::test_hostile_text_gives_the_ids_of_the_library",
    "pyflow/tokenizer/test_tokenizer_json.py::test_wikipedia_gives_the_ids_of_the_library",
    "pyflow/tokenizer/test_vocab_files.py::test_vocab_json_and_merges_give_the_ids_of_the_library",
    "pyflow/tokenizer/test_vocab_files.py::test_vocab_txt_gives_the_ids_of_the_library",
    "quant/test_blocks.py::test_no_block_is_further_off_than_plain_rounding",
    "quant/test_convert.py::test_files_of_every_type_hold_what_quantize_makes_of_the_weights",
    "quant/test_convert.py::test_the_gguf_package_reads_the_same_values",
    "quant/test_feedback.py",
)
# Of the tests with real models those that say soonest that a model no longer runs as it did. They
# load smollm2 alone, of 98 MB.
QUICK = (
    "pyflow/test_arguments.py",
    "test_golden_continuations.py::test_the_next_token_is_llama_cpps_wherever_it_was_sure[smollm2]",
)


def is_in(ring: tuple[str, ...], nodeid: str) -> bool:
    """Whether an entry of a ring is a test's file, function or the test itself."""
    path = nodeid.removeprefix("tests/")
    return any(
        path.startswith(entry) and path[len(entry) :][:1] in ("", ":", "[") for entry in ring
    )
