"""vLLM as an engine of a Tangram world. All but mesh, rank, main and zygote know no mesh and no turn.

From bottom to top; a module imports only what stands above it:

    contract   every symbol of vLLM that is used here, checked before anything else is
    families   how models of the hub name what they have, as tables
    ops        libtangram_experts by ctypes: experts over a table of pieces
    exchange   what a layer of experts asks for: its rows' results, from whoever has the experts; the local one
    binding    what vLLM's classes find: the agent's tensors, its KV, the exchange
    experts    the layer of experts that vLLM's models get
    loader     dense weights where the agent has them
    kv         KV where the agent has it, and the pages of its blocks
    plugin     registers the three before with vLLM
    engine     an EngineCore in this process; a step in parts
    rewind     a step that broke, undone
    carried    requests with their blocks and the state of their sampling, from one EngineCore to another
    mesh       rows of tokens to the ranks that have their experts, over the kit's exchange
    rank       one rank: an EngineCore under the kit's turn
    main       the program, with the flags of tangram-engine
    forks      a process that forks a program, one after another
    zygote     the same with its imports done once: it forks engines, one after another
"""

import os

# Read by vLLM when it is imported or its first engine is made, so here; whoever set one before keeps it.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker in this process
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # ranks share a machine: the pod's limits decide
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TORCH_COMPILE_DISABLE": "1",  # vLLM compiles parts of its sampler at their first use, for seconds in the middle of a step, and an image has no compiler
}
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
