"""Arguments of the calls over a cache of latents. Not a test itself."""


def latent_arguments(problem, operands):
    """The arguments that ``mla_decode`` and ``mla_ragged`` share, of a problem of layout ``latent``; with the lse."""
    o, p = operands, problem
    return {
        "q_latent": o.q[..., : p.v_head_dim],
        "q_rope": o.q[..., p.v_head_dim :],
        "latent_pages": o.k[:, :, 0],
        "kv_lens": o.kv_lens,
        "page_table": o.page_table,
        "softmax_scale": p.scale,
        "sliding_window": p.window,
        "logits_soft_cap": p.soft_cap,
        "softmax_aux": o.sinks,
        "kv_scale": None if o.k_scale is None else o.k_scale.reshape(o.k_scale.shape[:2]),
        "return_lse": True,
    }
