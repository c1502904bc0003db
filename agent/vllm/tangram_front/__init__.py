"""The text server of a gateway: vLLM's own OpenAI server, without weights, over a session with the gateway.

From bottom to top; a module imports only modules above it in this list:

    messages   front.proto, from its descriptor
    session    submits and cancels to the gateway, pieces of tokens back
    core       the session behind the interface of vLLM's engine
    selftest   checks that transformers' tokenizer encodes as the checkpoint's own file does
    server     the server on its UNIX socket
    main       the program: its imports are done once, and it forks servers, one after another
"""

import tangram_vllm  # noqa: F401  sets what vLLM reads from the environment when it is imported
