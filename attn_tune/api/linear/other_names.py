"""Arguments of like functions elsewhere, and what to do here instead: a name of ours, or words."""

OTHERS = "like functions of flash-linear-attention, Mamba-2 or vLLM"

_GATE = "compute the gates before the call: g = -exp(A_log) * softplus(a + dt_bias)"
_BORDERS = (
    "give gates of minus infinity where sequences begin, or for one row 'cu_seqlens', the first token of each and the "
    "end of the last"
)
_SLOPES = "it is in the slopes: multiply the constant gates g by the factor of the layer"
NAMES = {
    "output_final_state": "return_state",
    "return_final_states": "here it is 'return_state', with the last two axes of the states swapped",
    "initial_states": "here it is 'initial_state', with the last two axes swapped",
    "ssm_state_indices": "slots",
    "state_indices": "slots",
    "seq_idx": _BORDERS,
    "segment_ids": _BORDERS,
    "cu_seqlens_q": "cu_seqlens",
    "softmax_scale": "scale",
    "head_first": "arrays are [batch, length, heads, head dim] here; swap axes 1 and 2 of those with heads first",
    "chunk_size": "leave it out: it is a knob that is tuned, and cfg= fixes it",
    "use_qk_l2norm_in_kernel": "normalise q and k before the call, with 1e-6 under the root",
    "use_gate_in_kernel": _GATE,
    "A_log": _GATE,
    "dt_bias": _GATE,
    "use_beta_sigmoid_in_kernel": "pass jax.nn.sigmoid(beta) as beta",
    "allow_neg_eigval": "pass 2 * jax.nn.sigmoid(beta) as beta",
    "state_v_first": "states are [.., keys, values] here; swap their last two axes",
    "transpose_state_layout": "states are [.., keys, values] here; swap their last two axes",
    "safe_gate": "leave it out: gates may be anything up to 0 here",
    "lower_bound": "compute the gates before the call: g = lower_bound * sigmoid(exp(A_log) * (g + dt_bias))",
    "cu_seqlens_cpu": "leave it out: only the device needs to know the lengths",
    "gv": "no function here has gates for the channels of the values",
    "D": "add D * x to the output",
    "normalize": "leave it out: outputs are not divided by a sum of the keys",
    "layer_idx": _SLOPES,
    "num_layers": _SLOPES,
    "causal": "leave it out: a token reads itself and those before it",
    "is_causal": "leave it out: a token reads itself and those before it",
}
