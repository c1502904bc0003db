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

// Limits of requests to the text server. vLLM's own limits are far higher, and each costs memory.
const (
	maxChoices   = 8
	maxStopBytes = 256
	maxTools     = 128
	maxLogprobs  = 20
)

// fieldRule returns what is wrong with a field's value; "": the value is accepted.
type fieldRule func(raw json.RawMessage) string

// only accepts these values, which request nothing beyond the default.
func only(values ...string) fieldRule {
	return func(raw json.RawMessage) string {
		if slices.Contains(values, compact(raw)) {
			return ""
		}
		return "has an unsupported value; send " + strings.Join(values, " or ")
	}
}

func compact(raw json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return string(raw)
	}
	return out.String()
}

// atMost limits the number of elements of a list.
func atMost(most int) fieldRule {
	return func(raw json.RawMessage) string {
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) == nil && len(list) > most {
			return fmt.Sprintf("has %d entries; send at most %d", len(list), most)
		}
		return ""
	}
}

// upTo limits a number. vLLM rejects values that are not numbers.
func upTo(most float64) fieldRule {
	return func(raw json.RawMessage) string {
		var n float64
		if json.Unmarshal(raw, &n) == nil && (n < 0 || n > most) {
			return fmt.Sprintf("%v is out of range; send a value from 0 to %v", n, most)
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
		return "has the wrong type; send a string or an array of strings"
	}
	if len(many) > maxStops {
		return fmt.Sprintf("has %d strings; send at most %d", len(many), maxStops)
	}
	for _, s := range many {
		if len(s) > maxStopBytes {
			return fmt.Sprintf("has a string of %d bytes; send at most %d bytes", len(s), maxStopBytes)
		}
	}
	return ""
}

// options accepts an object with these fields only.
func options(known ...string) fieldRule {
	return func(raw json.RawMessage) string {
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil {
			return "has the wrong type; send an object"
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if !slices.Contains(known, name) && !isNull(fields[name]) && compact(fields[name]) != "false" {
				return fmt.Sprintf("has the unsupported field %q; remove the field", short(name))
			}
		}
		return ""
	}
}

// texts accepts contents of these types only, because the model reads only text.
func texts(raw json.RawMessage, types ...string) string {
	var parts []struct {
		Type    string          `json:"type"`
		Content json.RawMessage `json:"content"` // of a part with nested parts
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "" // a string, or vLLM reports the error
	}
	for _, p := range parts {
		if !slices.Contains(types, p.Type) {
			return fmt.Sprintf("has content of the unsupported type %q; send %s", short(p.Type), strings.Join(types, ", "))
		}
		if wrong := texts(p.Content, types...); wrong != "" {
			return wrong
		}
	}
	return ""
}

// ofTypes accepts a text or a list of contents of these types.
func ofTypes(types ...string) fieldRule {
	return func(raw json.RawMessage) string { return texts(raw, types...) }
}

// messagesOf accepts messages with contents of these types.
func messagesOf(types ...string) fieldRule {
	return func(raw json.RawMessage) string {
		var messages []struct {
			Content json.RawMessage `json:"content"`
		}
		if json.Unmarshal(raw, &messages) != nil {
			return "" // vLLM reports the error
		}
		for i, m := range messages {
			if wrong := texts(m.Content, types...); wrong != "" {
				return fmt.Sprintf("message %d %s", i, wrong)
			}
		}
		return ""
	}
}

// inputItems checks the input of a response: text messages, function calls and their outputs, and reasoning.
func inputItems(raw json.RawMessage) string {
	var items []struct {
		Type    string          `json:"type"`
		Content json.RawMessage `json:"content"`
		Output  json.RawMessage `json:"output"`
	}
	if json.Unmarshal(raw, &items) != nil {
		return "" // a text, or vLLM reports the error
	}
	for i, item := range items {
		types := []string{"input_text", "output_text", "refusal"}
		switch item.Type {
		case "", "message", "function_call", "function_call_output":
		case "reasoning":
			types = []string{"reasoning_text"}
		default:
			return fmt.Sprintf("item %d has the unsupported type %q; send message, function_call, function_call_output or reasoning", i, short(item.Type))
		}
		if wrong := cmp.Or(texts(item.Content, types...), texts(item.Output, types...)); wrong != "" {
			return fmt.Sprintf("item %d %s", i, wrong)
		}
	}
	return ""
}

// typed accepts an object of one of these types, or a list of at most maxTools of them.
func typed(types ...string) fieldRule {
	return func(raw json.RawMessage) string {
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil {
			list = []json.RawMessage{raw}
		}
		if len(list) > maxTools {
			return fmt.Sprintf("has %d entries; send at most %d", len(list), maxTools)
		}
		for _, one := range list {
			var object struct {
				Type string `json:"type"`
			}
			if json.Unmarshal(one, &object) == nil && !slices.Contains(types, object.Type) {
				return fmt.Sprintf("has the unsupported type %q; send %s", short(object.Type), strings.Join(types, " or "))
			}
		}
		return ""
	}
}

func onePrompt(raw json.RawMessage) string {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) != 1 {
		return "has several texts or none; send one prompt per request"
	}
	return ""
}

// check checks the fields and returns the body for the text server: without nulls, with the model's name, and with the
// request id if the path requires it.
func (d doorPath) check(fields map[string]json.RawMessage, model, id string) ([]byte, error) {
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
	if d.id != "" {
		fields[d.id] = json.RawMessage(quoted(id))
	}
	return json.Marshal(fields)
}

func quoted(text string) string {
	wire, _ := json.Marshal(text)
	return string(wire)
}

// modelError is OpenAI's 404.
type modelError struct{ asked, served string }

func (e *modelError) Error() string {
	return fmt.Sprintf("model %q does not exist; send %q", short(e.asked), e.served)
}
