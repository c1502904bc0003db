package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	pathCompletions = "/v1/completions"
	pathChat        = "/v1/chat/completions"
	pathTokenize    = "/tokenize"
)

// Limits of what the text server is asked for. vLLM's own are far higher, and each costs memory.
const (
	maxChoices   = 8
	maxStopBytes = 256
	maxTools     = 128
	maxLogprobs  = 20
)

// fieldRule says what is wrong with a field's value; "": it passes.
type fieldRule func(raw json.RawMessage) string

// doorRules of a path: the fields that the text server is given. Any other is refused by its name: vLLM would ignore it.
type doorRules struct {
	fields map[string]fieldRule // nil: any value; vLLM checks it
	last   string               // of the last event of a stream
}

// only these values, which ask for nothing beyond what is done anyway.
func only(values ...string) fieldRule {
	return func(raw json.RawMessage) string {
		if slices.Contains(values, compact(raw)) {
			return ""
		}
		return "is not supported, only " + strings.Join(values, " or ")
	}
}

func compact(raw json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return string(raw)
	}
	return out.String()
}

// atMost elements of a list.
func atMost(most int) fieldRule {
	return func(raw json.RawMessage) string {
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) == nil && len(list) > most {
			return fmt.Sprintf("has %d entries; at most %d are taken", len(list), most)
		}
		return ""
	}
}

// upTo a number; what is no number, vLLM refuses.
func upTo(most float64) fieldRule {
	return func(raw json.RawMessage) string {
		var n float64
		if json.Unmarshal(raw, &n) == nil && (n < 0 || n > most) {
			return fmt.Sprintf("%v is not in 0..%v", n, most)
		}
		return ""
	}
}

func stopStrings(raw json.RawMessage) string {
	var one string
	many := []string{}
	if json.Unmarshal(raw, &one) == nil {
		many = append(many, one)
	} else if json.Unmarshal(raw, &many) != nil {
		return "is neither a string nor an array of strings"
	}
	if len(many) > maxStops {
		return fmt.Sprintf("has %d strings; at most %d are taken", len(many), maxStops)
	}
	for _, s := range many {
		if len(s) > maxStopBytes {
			return fmt.Sprintf("has a string of %d bytes; at most %d are taken", len(s), maxStopBytes)
		}
	}
	return ""
}

// options inside of an object: those that are named, and no others.
func options(known ...string) fieldRule {
	return func(raw json.RawMessage) string {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil {
			return "is not an object"
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if !slices.Contains(known, name) && !isNull(fields[name]) && compact(fields[name]) != "false" {
				return fmt.Sprintf("has %q, which is not supported", short(name))
			}
		}
		return ""
	}
}

// textParts: messages of other contents than text are for models of several kinds of input, which are not served.
func textParts(raw json.RawMessage) string {
	var messages []struct {
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &messages) != nil {
		return "" // vLLM says what is wrong
	}
	for i, m := range messages {
		var parts []struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(m.Content, &parts) != nil {
			continue
		}
		for _, p := range parts {
			if p.Type != "text" && p.Type != "refusal" && p.Type != "thinking" {
				return fmt.Sprintf("message %d has content of type %q; only text is supported", i, short(p.Type))
			}
		}
	}
	return ""
}

// sampled are the fields that all paths have that generate.
var sampled = map[string]fieldRule{
	"model": nil, "stream": nil, "stream_options": options("include_usage", "continuous_usage_stats"), "user": nil,
	"max_tokens": nil, "min_tokens": nil, "temperature": nil, "top_p": nil, "top_k": nil, "min_p": nil, "seed": nil,
	"presence_penalty": nil, "frequency_penalty": nil, "repetition_penalty": nil, "logit_bias": nil,
	"n": upTo(maxChoices), "stop": stopStrings, "stop_token_ids": atMost(maxStopTokens), "ignore_eos": nil, "include_stop_str_in_output": nil,
	"skip_special_tokens": nil, "spaces_between_special_tokens": nil, "add_special_tokens": nil, "return_token_ids": nil,
	"cache_salt": nil, "response_format": only(`{"type":"text"}`),

	// As clients send them by default.
	"use_beam_search": only("false"), "length_penalty": only("1", "1.0"), "echo": only("false"), "priority": only("0"), "bad_words": only("[]"),
	"return_tokens_as_token_ids": only("false"), "watermarking": only("false"), "service_tier": only(`"auto"`, `"default"`), "store": only("false"),
}

func with(more map[string]fieldRule) map[string]fieldRule {
	all := maps.Clone(sampled)
	maps.Copy(all, more)
	return all
}

// doorFields by path. docs/http-api.md has the table.
var doorFields = map[string]doorRules{
	pathCompletions: {last: "data: [DONE]", fields: with(map[string]fieldRule{
		"prompt": onePrompt, "best_of": only("1"), "suffix": only(`""`), "logprobs": upTo(maxLogprobs),
	})},
	pathChat: {last: "data: [DONE]", fields: with(map[string]fieldRule{
		"messages": textParts, "max_completion_tokens": nil, "tools": atMost(maxTools), "tool_choice": only(`"none"`, `"auto"`),
		"parallel_tool_calls": nil, "reasoning_effort": nil, "include_reasoning": nil, "thinking_token_budget": nil, "metadata": nil,
		"add_generation_prompt": nil, "continue_final_message": nil, "documents": nil, "chat_template_kwargs": nil, "return_prompt_text": nil,
		"logprobs": nil, "top_logprobs": upTo(maxLogprobs), "modalities": only(`["text"]`),
	})},
	pathTokenize: {fields: map[string]fieldRule{
		"model": nil, "prompt": nil, "messages": textParts, "add_special_tokens": nil, "return_token_strs": nil, "add_generation_prompt": nil,
		"continue_final_message": nil, "chat_template_kwargs": nil, "tools": atMost(maxTools),
	}},
}

func onePrompt(raw json.RawMessage) string {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) != 1 {
		return "is an array of texts: one prompt a request"
	}
	return ""
}

// check the fields, and give the body that the text server gets: without nulls, and with the model's name.
func (d doorRules) check(fields map[string]json.RawMessage, model string) ([]byte, error) {
	var unknown []string
	for name := range fields {
		if _, known := d.fields[name]; !known {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, &fieldError{cmp.Or(short(unknown[0]), "body"), "Unrecognized request argument supplied: " + strings.Join(unknown, ", ")}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if rule := d.fields[name]; rule != nil {
			if wrong := rule(fields[name]); wrong != "" {
				return nil, bad(name, "%s", wrong)
			}
		}
	}
	var asked string
	if raw, there := fields["model"]; there && (json.Unmarshal(raw, &asked) != nil || asked != model) {
		return nil, &modelError{asked, model}
	}
	fields["model"] = json.RawMessage(quoted(model))
	return json.Marshal(fields)
}

func quoted(text string) string {
	wire, _ := json.Marshal(text)
	return string(wire)
}

// modelError is OpenAI's 404.
type modelError struct{ asked, served string }

func (e *modelError) Error() string {
	return fmt.Sprintf("model %q is not here, only %q", short(e.asked), e.served)
}
