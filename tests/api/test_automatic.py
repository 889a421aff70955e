"""Calls that XLA or the types of the operands cut over eight virtual CPU devices, in a process of their own."""

import json

import pytest

from tests.several_devices import run_with_devices

CASES = (
    "bias_sinks_lengths_dropout_lse",
    "mask_positions_window_segments_one_kv_head",
)
NEAR = 1e-5


@pytest.fixture(scope="module")
def results():
    return json.loads(run_with_devices(8, "-m", "tests.api.automatic_program").splitlines()[-1])


@pytest.mark.parametrize("way", ["automatic", "explicit"])
@pytest.mark.parametrize("case", CASES)
def test_sharded_operands_give_the_whole_result_from_local_lookups_without_a_gather(results, case, way):
    difference, shapes, gathers, is_cut = results["cases"][case][way]
    assert difference < NEAR
    assert shapes == [[1, 2, 1]]
    assert gathers == 0
    assert is_cut


@pytest.mark.parametrize("case", CASES)
def test_the_default_shard_map_runs_every_feature_forward_and_backward(results, case):
    difference, shapes = results["cases"][case]["manual"]
    assert difference < NEAR
    assert shapes == [[1, 2, 1]]


@pytest.mark.parametrize("partitioner", ["layer", "gspmd"])
def test_a_layer_with_sharded_batch_and_heads_gathers_nothing(results, partitioner):
    difference, gathers = results[partitioner]
    assert difference < NEAR
    assert gathers == 0


@pytest.mark.parametrize("way", ["automatic", "explicit", "unnormalised"])
def test_shards_may_share_key_value_heads(results, way):
    difference, shapes = results["shared_heads"][way]
    assert difference < NEAR
    assert shapes == [[2, 2, 1]]


def test_a_sharded_length_is_gathered_with_one_warning(results):
    assert max(results["length"].values()) < NEAR
    assert results["quiet"] == []
    (warning,) = results["warnings"]
    assert "gathers q on every device" in warning
    assert "ring attention" in warning


@pytest.mark.parametrize("way", ["automatic", "explicit"])
def test_vmap_of_sharded_operands_is_right(results, way):
    assert max(results["mapped"][way]) < NEAR


@pytest.mark.parametrize(
    "way",
    [
        "no_jit",
        "in_shardings",
        "set_mesh_numpy",
        "set_mesh_masks",
        "set_mesh_lengths",
        "explicit_no_jit",
        "mesh_numpy",
        "unnormalised_automatic",
        "unnormalised_explicit",
        "unnormalised_manual",
    ],
)
def test_calls_with_other_shardings_are_right(results, way):
    assert results["other"][way] < NEAR


@pytest.mark.parametrize("way", ["automatic", "explicit"])
def test_checkpoint_policies_keep_named_results_of_sharded_calls(results, way):
    assert results["other"][f"remat_{way}"] == 1


def test_shards_take_the_packs_of_the_trace_and_name_them_in_the_program(results):
    chunks, is_same_program = results["packs"]
    assert chunks == [2]
    assert not is_same_program


@pytest.mark.parametrize("way", ["automatic", "explicit", "mesh"])
def test_dense_attention_keeps_batch_and_heads_from_local_lookups_without_a_gather(results, way):
    difference, shapes, gathers, is_cut = results["dense"][way]
    assert difference < NEAR
    assert shapes == [[1, 2, 1]]
    assert gathers == 0
    assert is_cut


@pytest.mark.parametrize("way", ["automatic", "manual"])
def test_dense_attention_with_dropout_runs_on_sharded_operands(results, way):
    assert results["dense_dropout"][way] < NEAR


@pytest.mark.parametrize("way", ["automatic", "explicit"])
def test_an_op_that_is_not_attention_keeps_its_parallel_rows(results, way):
    difference, shapes, gathers, is_cut = results["probe"][way]
    assert difference < NEAR
    assert shapes == [2]
    assert gathers == 0
    assert is_cut


@pytest.mark.parametrize("way", ["automatic", "explicit"])
def test_an_output_that_is_a_sum_over_rows_is_that_of_all_shards(results, way):
    difference, shapes = results["probe"][f"{way}_total"]
    assert difference < NEAR
    assert shapes == [2]


def test_an_output_without_a_parallel_letter_is_refused_unless_it_is_a_sum(results):
    assert "name it in Call.sums" in results["probe"]["unsummed"]


@pytest.mark.parametrize("mode", ["disable_jit", "checking_leaks"])
def test_the_modes_for_debugging_work_where_there_are_several_devices(results, mode):
    assert results["modes"][mode] < NEAR
