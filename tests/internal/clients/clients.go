// Package clients runs the clients of text that people use against a world whose model says what it is told to.
package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Scripts are the answers that the clients expect, as harness.Scripted takes them.
var Scripts = []string{"greeting=Quick brown foxes 🏳️‍🌈. 今日は, 한국어!", `weather=<tool_call>{"name":"get_weather","arguments":{"city" :"Paris"}}</tool_call>`,
	"list=one two three four five six seven eight nine ten"}

// ToolParser is vLLM's, of the calls of tools in Scripts.
const ToolParser = "hermes"

// All of them: OpenAI's for Python and for Node, litellm and Anthropic's for Python. Each is a program with an interpreter.
var All = [][2]string{{"build/vllm/bin/python", "chat.py"}, {"node", "chat.mjs"}, {"build/vllm/bin/python", "other.py"}}

// Run one to its end. The error has what it said. `root` of the repository, where `make vllm-setup` was run.
func Run(ctx context.Context, root string, client [2]string, url, model string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, client[0], filepath.Join(root, "tests/internal/clients", client[1]), url+"/v1", model)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+filepath.Join(root, "build/clients/python"), "NODE_PATH="+filepath.Join(root, "build/clients/node_modules"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", client[1], err, out)
	}
	return nil
}
