"""DDP's own complaints, and what the program raised."""

from ddp_doctor.checks.logs._cause import cause

DDP = "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"
DIST = "https://docs.pytorch.org/docs/stable/distributed.html"
ERRORS = "https://docs.pytorch.org/docs/stable/elastic/errors.html"

ddp_unused_parameters = cause(
    __name__,
    f"""Some parameters were not used in the forward pass.

    Why: DDP waits for the gradient of every parameter; one that takes no part in the loss has none.
    See: {DDP}
    """,
    r"Expected to have finished reduction in the prior iteration before starting a new one",
    r"parameters that were not used in producing loss",
    r"Parameter indices which did not receive grad",
    r"Expected to mark a variable ready only once",
    do="Use all parameters in the loss, or DistributedDataParallel(find_unused_parameters=True); TORCH_DISTRIBUTED_DEBUG=DETAIL names them.",
)

ddp_model_mismatch = cause(
    __name__,
    f"""The ranks built different models.

    Why: DDP compares the parameters of all ranks when it starts.
    See: {DDP}
    """,
    r"DDP expects same model across all ranks",
    r"params? .{0,60}appears not to match (strides|sizes) of the same param in process 0",
    r"verify params across processes|_verify_param_shape_across_processes",
    do="Build the model from the same configuration and seed on every rank; look for branches on the rank.",
)

ddp_uneven_inputs = cause(
    __name__,
    f"""Ranks have different numbers of batches.

    Why: A rank that is done leaves the others waiting in the next step's collective.
    See: {DDP}
    """,
    r"Detected at least one rank that exhausted inputs",
    r"uneven (inputs|number of (inputs|batches|samples))",
    r"Throwing across all ranks.{0,80}exhausted",
    do="Use DistributedSampler with drop_last, or model.join().",
)

cpu_tensor_nccl_only_group = cause(
    __name__,
    f"""A tensor on the CPU was given to a group that has NCCL only.

    Why: NCCL moves tensors between GPUs; CPU tensors need Gloo beside it.
    See: {DIST}
    """,
    r"No backend type associated with device type cpu",
    r"Tensors must be CUDA and dense",
    do="Move the tensor to the GPU, or init_process_group(backend='cpu:gloo,cuda:nccl').",
)

iterable_dataset_dispatch = cause(
    __name__,
    """Batches of an iterable data set cannot be handed to the ranks.

    Why: Accelerate's dispatcher needs tensors of like shapes on the first rank, and broadcasts objects otherwise.
    See: https://huggingface.co/docs/accelerate/concept_guides/internal_mechanism
    """,
    r"You can'?t use batches of different size with `?dispatch_batches=True`?",
    r"accelerate/data_loader\.py\", line \d{1,5}, in (_fetch_batches|concatenate)",
    r"Batch does not contain any data \(`None`\)",
    confidence="medium",
    do="Set dispatch_batches=False (split_batches where fit), so that every rank reads its own part.",
)
