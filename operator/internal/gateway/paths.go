package gateway

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
)

const (
	pathCompletions = "/v1/completions"
	pathChat        = "/v1/chat/completions"
	pathResponses   = "/v1/responses"
	pathMessages    = "/v1/messages"
	pathCount       = "/v1/messages/count_tokens"
	pathTokenize    = "/tokenize"
)

// doorPath defines which fields of a path the text server gets, and the form of its errors.
type doorPath struct {
	// fields by name. Any other field is rejected by name, because vLLM would ignore it. A nil rule accepts any value:
	// vLLM checks it.
	fields map[string]fieldRule
	// id is the body field of the request id, for paths where vLLM does not read it from the header. The door sets it.
	id string
	// last is the beginning of a stream's last event. It starts with a line break, which the JSON text of an event
	// never contains.
	last string
	form errorForm
}

// errorForm is the form of an API's errors.
type errorForm struct {
	body  func(code int, e apiError) any
	event func(code int, e apiError) (name string, data any) // in a stream
}

// errorOf has the form of OpenAI's APIs.
func errorOf(_ int, e apiError) any { return map[string]any{"error": e} }

var openAI = errorForm{errorOf, func(code int, e apiError) (string, any) { return "", errorOf(code, e) }}

// openAIResponses sends stream errors as OpenAI documents them, plus the `error` field of chat: its clients raise an
// exception when they see it.
var openAIResponses = errorForm{errorOf, func(_ int, e apiError) (string, any) {
	return "error", map[string]any{"type": "error", "code": e.Type, "message": e.Message, "param": e.Param, "error": e}
}}

var anthropic = errorForm{anthropicError, func(code int, e apiError) (string, any) { return "error", anthropicError(code, e) }}

// anthropicError selects the error type of a status (Anthropic's API, "Errors").
func anthropicError(code int, e apiError) any {
	types := map[int]string{http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large",
		http.StatusTooManyRequests: "rate_limit_error", http.StatusServiceUnavailable: "overloaded_error"}
	kind, known := types[code]
	switch {
	case known:
	case code < http.StatusInternalServerError:
		kind = "invalid_request_error"
	default:
		kind = "api_error"
	}
	return map[string]any{"type": "error", "error": map[string]string{"type": kind, "message": e.Message}}
}

// formOf returns the form of a path's errors.
func formOf(path string) errorForm {
	if p, there := doorPaths[path]; there {
		return p.form
	}
	return openAI
}

// inStream encodes an error as an event.
func (f errorForm) inStream(code int, e apiError) string {
	name, data := f.event(code, e)
	wire, _ := json.Marshal(data)
	if name != "" {
		name = "event: " + name + "\n"
	}
	return name + "data: " + string(wire) + "\n\n"
}

// sampled has the fields that all of OpenAI's generating paths share.
var sampled = map[string]fieldRule{
	"model": nil, "stream": nil, "user": nil, "temperature": nil, "top_p": nil, "top_k": nil, "min_p": nil, "seed": nil,
	"presence_penalty": nil, "frequency_penalty": nil, "repetition_penalty": nil, "logit_bias": nil,
	"stop": stopStrings, "stop_token_ids": atMost(maxStopTokens), "ignore_eos": nil, "include_stop_str_in_output": nil, "skip_special_tokens": nil,
	"cache_salt": nil,

	// Only the clients' default values.
	"priority": only("0"), "watermarking": only("false"), "service_tier": only(`"auto"`, `"default"`), "store": only("false"),
}

// completed has the fields that chat and completions share.
var completed = with(sampled, map[string]fieldRule{
	"stream_options": options("include_usage", "continuous_usage_stats"), "max_tokens": nil, "min_tokens": nil, "n": upTo(maxChoices),
	"spaces_between_special_tokens": nil, "add_special_tokens": nil, "return_token_ids": nil, "response_format": only(`{"type":"text"}`),

	"use_beam_search": only("false"), "length_penalty": only("1", "1.0"), "echo": only("false"), "bad_words": only("[]"), "return_tokens_as_token_ids": only("false"),
})

// counted has the fields of Anthropic's API that make up a prompt.
var counted = map[string]fieldRule{
	"model": nil, "messages": messagesOf("text", "thinking", "redacted_thinking", "tool_use", "tool_result"), "system": ofTypes("text"),
	"thinking": typed("disabled", "adaptive"), "output_config": options("effort"), "tools": atMost(maxTools), "tool_choice": typed("auto", "none"),
	"chat_template_kwargs": nil, "cache_control": nil,
}

func with(fields, more map[string]fieldRule) map[string]fieldRule {
	all := maps.Clone(fields)
	maps.Copy(all, more)
	return all
}

// doorPaths has the paths that need a tokenizer. docs/http-api.md has the table.
var doorPaths = map[string]doorPath{
	pathCompletions: {form: openAI, last: "\ndata: [DONE]", fields: with(completed, map[string]fieldRule{
		"prompt": onePrompt, "best_of": only("1"), "suffix": only(`""`), "logprobs": upTo(maxLogprobs),
	})},
	pathChat: {form: openAI, last: "\ndata: [DONE]", fields: with(completed, map[string]fieldRule{
		"messages": messagesOf("text", "refusal", "thinking"), "max_completion_tokens": nil, "tools": atMost(maxTools), "tool_choice": only(`"none"`, `"auto"`),
		"parallel_tool_calls": nil, "reasoning_effort": nil, "include_reasoning": nil, "metadata": nil,
		"add_generation_prompt": nil, "continue_final_message": nil, "documents": nil, "chat_template_kwargs": nil, "return_prompt_text": nil,
		"logprobs": nil, "top_logprobs": upTo(maxLogprobs), "modalities": only(`["text"]`),
	})},
	pathResponses: {form: openAIResponses, id: "request_id", last: "\nevent: response.completed", fields: with(sampled, map[string]fieldRule{
		"input": inputItems, "instructions": nil, "max_output_tokens": nil, "metadata": nil, "prompt_cache_key": nil, "parallel_tool_calls": nil,
		"tools": typed("function"), "tool_choice": only(`"none"`, `"auto"`), "reasoning": options("effort"), "include_reasoning": nil,
		"text": only(`{"format":{"type":"text"}}`, "{}"), "include": only(`["message.output_text.logprobs"]`, "[]"), "top_logprobs": upTo(maxLogprobs),
		"chat_template_kwargs": nil, "truncation": only(`"disabled"`), "background": only("false"),
	})},
	pathMessages: {form: anthropic, last: "\nevent: message_stop", fields: with(counted, map[string]fieldRule{
		"max_tokens": nil, "stream": nil, "stop_sequences": stopStrings, "temperature": nil, "top_p": nil, "top_k": nil, "metadata": nil, "cache_salt": nil,
		"service_tier": only(`"auto"`, `"standard_only"`),
	})},
	pathCount: {form: anthropic, fields: counted},
	pathTokenize: {form: openAI, fields: map[string]fieldRule{
		"model": nil, "prompt": nil, "messages": messagesOf("text", "refusal", "thinking"), "add_special_tokens": nil, "return_token_strs": nil,
		"add_generation_prompt": nil, "continue_final_message": nil, "chat_template_kwargs": nil, "tools": atMost(maxTools),
	}},
}

// textPaths returns the paths that only a text server can answer.
func textPaths() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(doorPaths)), func(path string) bool { return path == pathCompletions })
}
