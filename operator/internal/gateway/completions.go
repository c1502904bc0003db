package gateway

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/google/uuid"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// defaultMaxTokens is OpenAI's.
const defaultMaxTokens = 16

// completionRequest is the part of OpenAI's request that means something here. Fields it
// does not know are ignored, as OpenAI does.
type completionRequest struct {
	Model         string          `json:"model"`
	Prompt        json.RawMessage `json:"prompt"`
	MaxTokens     *int64          `json:"max_tokens"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	Seed          *int64          `json:"seed"`
	N             *int64          `json:"n"`
	BestOf        *int64          `json:"best_of"`
	Echo          bool            `json:"echo"`
	Logprobs      *int64          `json:"logprobs"`
	Stop          json.RawMessage `json:"stop"`
	StopTokenIDs  []uint32        `json:"stop_token_ids"` // extension
	Stream        bool            `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	ReturnLogitHash bool `json:"return_logit_hash"` // extension
}

// fieldError is a 400 that names the field.
type fieldError struct{ field, message string }

func (e *fieldError) Error() string { return e.field + ": " + e.message }

func bad(field, format string, args ...any) error {
	return &fieldError{field, fmt.Sprintf(format, args...)}
}

// submit checks a request against the world and turns it into one for an engine.
func (r *completionRequest) submit(world *tangramv1.World) (*tangramv1.Submit, error) {
	s := &tangramv1.Submit{Request: uuid.NewString(), MaxTokens: defaultMaxTokens, Temperature: 1, TopP: 1}
	var err error
	if s.Prompt, err = promptTokens(r.Prompt, world.Vocabulary); err != nil {
		return nil, err
	}
	if r.MaxTokens != nil {
		if *r.MaxTokens < 1 || *r.MaxTokens > math.MaxInt32 {
			return nil, bad("max_tokens", "%d is not at least 1", *r.MaxTokens)
		}
		s.MaxTokens = uint32(*r.MaxTokens)
	}
	if total := uint64(len(s.Prompt)) + uint64(s.MaxTokens); total > uint64(world.MaxTokens) {
		return nil, bad("max_tokens", "%d prompt tokens and %d to generate make %d; this world takes %d in all", len(s.Prompt), s.MaxTokens, total, world.MaxTokens)
	}
	if r.Temperature != nil {
		if *r.Temperature < 0 || *r.Temperature > 2 {
			return nil, bad("temperature", "%v is not in 0..2", *r.Temperature)
		}
		s.Temperature = float32(*r.Temperature)
	}
	if r.TopP != nil {
		if *r.TopP <= 0 || *r.TopP > 1 {
			return nil, bad("top_p", "%v is not above 0 and at most 1", *r.TopP)
		}
		s.TopP = float32(*r.TopP)
	}
	s.Seed = rand.Uint64() // any will do where the client names none
	if r.Seed != nil {
		s.Seed = uint64(*r.Seed)
	}
	switch {
	case r.N != nil && *r.N != 1:
		return nil, bad("n", "%d choices are not supported, only 1", *r.N)
	case r.BestOf != nil && *r.BestOf != 1:
		return nil, bad("best_of", "%d is not supported, only 1", *r.BestOf)
	case r.Echo:
		return nil, bad("echo", "is not supported")
	case r.Logprobs != nil:
		return nil, bad("logprobs", "are not supported")
	}
	s.StopTokens, err = r.stops(world.Vocabulary)
	return s, err
}

func promptTokens(raw json.RawMessage, vocabulary uint32) ([]uint32, error) {
	var text string
	var ids []int64
	var texts []string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, bad("prompt", "is missing")
	case json.Unmarshal(raw, &text) == nil:
	case json.Unmarshal(raw, &ids) == nil:
	case json.Unmarshal(raw, &texts) == nil && len(texts) == 1:
		text = texts[0]
	default:
		return nil, bad("prompt", "is neither a string nor an array of token ids (one prompt a request)")
	}
	for _, b := range []byte(text) { // a token is a byte
		ids = append(ids, int64(b))
	}
	if len(ids) == 0 {
		return nil, bad("prompt", "is empty")
	}
	out := make([]uint32, len(ids))
	for i, id := range ids {
		if id < 0 || id >= int64(vocabulary) {
			return nil, bad("prompt", "token %d at place %d is not below the vocabulary of %d", id, i, vocabulary)
		}
		out[i] = uint32(id)
	}
	return out, nil
}

func (r *completionRequest) stops(vocabulary uint32) ([]uint32, error) {
	for _, id := range r.StopTokenIDs {
		if id >= vocabulary {
			return nil, bad("stop_token_ids", "token %d is not below the vocabulary of %d", id, vocabulary)
		}
	}
	out := append([]uint32(nil), r.StopTokenIDs...)
	if len(r.Stop) == 0 || string(r.Stop) == "null" {
		return out, nil
	}
	var one string
	var many []string
	switch {
	case json.Unmarshal(r.Stop, &one) == nil:
		many = []string{one}
	case json.Unmarshal(r.Stop, &many) == nil:
	default:
		return nil, bad("stop", "is neither a string nor an array of strings")
	}
	for _, s := range many {
		if len(s) != 1 {
			return nil, bad("stop", "%q: only strings of one byte (one token) are supported", s)
		}
		out = append(out, uint32(s[0]))
	}
	return out, nil
}

type tokenInfo struct {
	LogitHash string `json:"logit_hash"` // 16 hex digits
	Position  uint32 `json:"position"`
	Rank      string `json:"rank"` // member that emitted it
}

type choice struct {
	Index        int         `json:"index"`
	Text         string      `json:"text"`
	Logprobs     any         `json:"logprobs"`
	FinishReason *string     `json:"finish_reason"`
	TokenIDs     []uint32    `json:"token_ids"`         // extension
	Tangram      []tokenInfo `json:"tangram,omitempty"` // extension, one per token
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

func finishReason(f tangramv1.Finish) *string {
	text := ""
	switch f {
	case tangramv1.Finish_FINISH_LENGTH:
		text = "length"
	case tangramv1.Finish_FINISH_STOP:
		text = "stop"
	default:
		return nil
	}
	return &text
}
