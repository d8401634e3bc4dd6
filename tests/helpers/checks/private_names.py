"""Private names of DeepSpeed used by the package. tests/private_names.md says what each is used for."""

# Owner -> its private names
PRIVATE_NAMES = {
    "optimizer at stages 1 and 2": (
        "_global_grad_norm",
        "single_partition_of_fp32_groups",
        "update_lp_params",
        "cpu_offload",
        "get_param_id",
        "get_grad_norm_direct",
        "model_parallel_rank",
        "process_gradients",
        "reduce_ipg_grads",
        "bit16_groups",
        "_use_compact_grad_partition_buffer",
        "_get_compact_grad_partition_slice",
    ),
    "optimizer at stage 3": (
        "_global_grad_norm",
        "fp32_partitioned_groups_flat",
        "grad_position",
        "_get_param_partition_rank",
        "get_grad_norm_direct",
        "model_parallel_rank",
    ),
    "parameter at stages 1 and 2": ("_hp_mapping", "_index_in_param_group"),
    "mapping at stages 1 and 2": ("get_lp_grad_fragment",),
    "optimizer at stages 1 and 2, offloaded": ("norm_for_param_grads",),
    "parameter at stage 3": ("ds_id", "ds_numel", "ds_shape", "ds_tensor", "ds_secondary_tensor"),
    "module at stage 3": ("pre_bwd_fn", "post_bwd_fn"),
    "deepspeed.DeepSpeedEngine": ("_do_optimizer_sanity_check",),
    "deepspeed.ops": ("__compatible_ops__",),
    "deepspeed.utils.nvtx": ("enable_nvtx",),
    "deepspeed.runtime.compiler": ("compile",),
    "deepspeed.runtime.zero.muon": ("original_muon",),
}
