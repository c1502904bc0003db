"""vLLM as an engine of a Tangram world. Only mesh, rank, main and zygote depend on the mesh and the step loop.

From bottom to top; a module imports only modules above it in this list:

    contract   every symbol of vLLM that is used here, checked first
    families   names of tensors and settings of model families on the hub, as tables
    ops        libtangram_experts by ctypes: experts over a table of pieces
    exchange   the interface that gives a layer of experts its rows' results; the local exchange
    binding    objects for vLLM's classes: the agent's tensors, its KV, the exchange
    experts    the layer of experts that vLLM's models get
    loader     dense weights in the agent's memory
    kv         KV in the agent's memory, and the pages of its blocks
    plugin     registers the three before with vLLM
    engine     an EngineCore in this process; a step in parts
    rewind     undoes a broken step
    carried    requests with their blocks and the state of their sampling, from one EngineCore to another
    mesh       rows of tokens to the ranks that have their experts, over the kit's exchange
    rank       one rank: an EngineCore under the kit's step loop
    main       the program, with the flags of tangram-engine
    forks      a process that forks a program, one after another
    zygote     the same with its imports done once: it forks engines, one after another
"""

import os

# vLLM reads these at its import or for its first engine, so they are set here. Values that are set already are kept.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker in this process
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # ranks share a machine: the pod's limits decide
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # vLLM compiles parts of its sampler at their first use, for seconds in the middle of a step, and an image has no
    # compiler.
    "TORCH_COMPILE_DISABLE": "1",
}
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
