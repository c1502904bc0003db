// Package clients runs popular text clients against a world with scripted answers.
package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Scripts are the answers that the clients expect, for harness.Scripted.
var Scripts = []string{"greeting=Quick brown foxes 🏳️‍🌈. 今日は, 한국어!", `weather=<tool_call>{"name":"get_weather","arguments":{"city" :"Paris"}}</tool_call>`,
	"list=one two three four five six seven eight nine ten"}

// ToolParser is vLLM's parser of the tool calls in Scripts.
const ToolParser = "hermes"

// All lists the clients: OpenAI's for Python and for Node, litellm and Anthropic's for Python. Each is a program with
// an interpreter.
var All = [][2]string{{"build/vllm/bin/python", "chat.py"}, {"node", "chat.mjs"}, {"build/vllm/bin/python", "other.py"}}

// Run runs one client to its end. The error has its output. `root` is the repository, where `make vllm-setup` was run.
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
