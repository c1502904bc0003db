package gateway

import (
	"bytes"
	"encoding/json"
	"slices"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// byteVocabulary is the size of the only vocabulary without tokenizer: token i is the byte i. Test models have it,
// enabled by UseBytes. Otherwise the gateway itself rejects text and returns token ids only.
const byteVocabulary = 256

// Limits on stop conditions. OpenAI's API accepts 4 strings. Token ids are a set; more than maxStopTokens are a
// mistake.
const (
	maxStops      = 4
	maxStopTokens = 256
)

// maxVarint32 is the maximum size of an encoded token id, in bytes.
const maxVarint32 = 5

// promptTokens returns the prompt's token ids, or one token per byte of its text if the vocabulary is bytes.
func (r *completionRequest) promptTokens(world *tangramv1.World, bytesAreTokens bool) ([]uint32, error) {
	var text string
	var ids []int64
	var lists [][]int64
	var texts [2]*string // elements after the second are skipped
	isText := false
	switch raw := r.Prompt; {
	case isNull(raw):
		return nil, bad("prompt", "is missing; send a string or an array of token ids")
	case json.Unmarshal(raw, &text) == nil:
		isText = true
	case json.Unmarshal(raw, &ids) == nil:
		if bytes.Contains(raw, []byte("null")) { // encoding/json reads null as token 0
			return nil, bad("prompt", "contains null; send token ids")
		}
	case json.Unmarshal(raw, &lists) == nil && len(lists) == 1 && !bytes.Contains(raw, []byte("null")):
		ids = lists[0]
	case json.Unmarshal(raw, &texts) == nil && texts[0] != nil && texts[1] == nil:
		text, isText = *texts[0], true
	default:
		return nil, bad("prompt", "has the wrong type; send one string or one array of token ids")
	}
	if isText && !bytesAreTokens {
		return nil, bad("prompt", "this gateway has no tokenizer for the model; send the prompt as an array of token ids below %d", world.Vocabulary)
	}
	if n := len(text) + len(ids); n == 0 {
		return nil, bad("prompt", "is empty; send at least one token")
	} else if uint64(n) >= uint64(world.MaxTokens) { // before it is expanded
		return nil, bad("prompt", "has %d tokens; send fewer than %d, the limit for prompt and answer together", n, world.MaxTokens)
	}
	for _, b := range []byte(text) {
		ids = append(ids, int64(b))
	}
	return tokens("prompt", ids, world)
}

// stops returns the distinct tokens that end an answer: stop_token_ids, and stop strings if the vocabulary is bytes.
func (r *completionRequest) stops(world *tangramv1.World, bytesAreTokens bool) ([]uint32, error) {
	var ids []int64
	if raw := r.StopTokenIDs; !isNull(raw) {
		if err := json.Unmarshal(raw, &ids); err != nil || bytes.Contains(raw, []byte("null")) {
			return nil, bad("stop_token_ids", "has the wrong type; send an array of token ids")
		}
		if len(ids) > maxStopTokens {
			return nil, bad("stop_token_ids", "has %d token ids; send at most %d", len(ids), maxStopTokens)
		}
	}
	out, err := tokens("stop_token_ids", ids, world)
	if err != nil {
		return nil, err
	}
	texts, err := r.stopTexts()
	if err != nil {
		return nil, err
	}
	for _, s := range texts {
		switch {
		case !bytesAreTokens:
			return nil, bad("stop", "this gateway has no tokenizer for the model; send stop_token_ids below %d", world.Vocabulary)
		case len(s) != 1:
			return nil, bad("stop", "%q is not supported; send strings of one byte (one token)", s)
		}
		out = append(out, uint32(s[0]))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (r *completionRequest) stopTexts() (many []string, err error) {
	var one string
	switch {
	case isNull(r.Stop):
		return nil, nil
	case json.Unmarshal(r.Stop, &one) == nil:
		return []string{one}, nil
	case json.Unmarshal(r.Stop, &many) != nil:
		return nil, bad("stop", "has the wrong type; send a string or an array of strings")
	case len(many) > maxStops:
		return nil, bad("stop", "has %d strings; send at most %d", len(many), maxStops)
	}
	return many, nil
}

// tokens converts the ids of a field, each within the vocabulary.
func tokens(field string, ids []int64, world *tangramv1.World) ([]uint32, error) {
	out := make([]uint32, len(ids))
	for i, id := range ids {
		if id < 0 || id >= int64(world.Vocabulary) {
			return nil, bad(field, "token %d at index %d is out of range; send ids below %d", id, i, world.Vocabulary)
		}
		out[i] = uint32(id)
	}
	return out, nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
