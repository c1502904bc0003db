package gateway

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// defaultMaxTokens is OpenAI's default.
const defaultMaxTokens = 16

// completionRequest has the supported fields of OpenAI's request (table in docs/http-api.md). Any other field is
// rejected by name.
type completionRequest struct {
	Model         string          `json:"model"`
	Prompt        json.RawMessage `json:"prompt"`
	MaxTokens     *int64          `json:"max_tokens"`
	Temperature   *float64        `json:"temperature"`
	TopP          *float64        `json:"top_p"`
	Seed          *int64          `json:"seed"`
	Stop          json.RawMessage `json:"stop"`
	StopTokenIDs  json.RawMessage `json:"stop_token_ids"` // extension
	Stream        bool            `json:"stream"`
	StreamOptions *struct {
		IncludeUsage    bool `json:"include_usage"`
		ContinuousUsage bool `json:"continuous_usage_stats"` // as in vLLM: in each chunk, not only in the last
	} `json:"stream_options"`
	ReturnLogitHash bool `json:"return_logit_hash"` // extension
	sampling

	// Accepted only with values that have no effect: clients send them with their defaults.
	N        *int64 `json:"n"`
	BestOf   *int64 `json:"best_of"`
	Echo     bool   `json:"echo"`
	Logprobs *int64 `json:"logprobs"` // rejected for token ids: it would need their texts
	Suffix   string `json:"suffix"`

	// CacheSalt isolates the cached prefix of this prompt, as in vLLM. Only requests with the same salt reuse it, and
	// only they can detect by timing that it is cached.
	CacheSalt *string `json:"cache_salt"`

	// Without effect on the answer.
	User string `json:"user"`
}

// fieldError is a 400 that names the field.
type fieldError struct{ field, message string }

// Limits of strings, in bytes. maxSalt is the engines' limit of a cache_salt.
const (
	maxSalt = 256
	maxUser = 1024
)

// maxSubmit is the largest Submit, in bytes, that the gateway sends, including all tokens of its answer for a replay.
// Engines accept messages of 64 MiB (agent/engine/frontend/server.cc). A larger one would break the session of every
// client of the rank.
const maxSubmit = 48 << 20

// mostWords is the maximum length of an error message, in bytes: it quotes client input, which may be long.
const mostWords = 500

func (e *fieldError) Error() string { return short(e.message) }

func short(text string) string {
	if len(text) <= mostWords {
		return strings.ToValidUTF8(text, "?")
	}
	return strings.ToValidUTF8(text[:mostWords], "") + " ..."
}

func bad(field, format string, args ...any) error {
	return &fieldError{field, field + ": " + fmt.Sprintf(format, args...)}
}

// submit checks a request and converts it for an engine. bytesAreTokens: each byte of a text is a token.
func (r *completionRequest) submit(world *tangramv1.World, bytesAreTokens bool) (*tangramv1.Submit, error) {
	s := &tangramv1.Submit{Request: uuid.NewString(), MaxTokens: defaultMaxTokens, Temperature: 1, TopP: 1}
	var err error
	if s.Prompt, err = r.promptTokens(world, bytesAreTokens); err != nil {
		return nil, err
	}
	if r.MaxTokens != nil {
		if *r.MaxTokens < 1 || *r.MaxTokens > math.MaxInt32 {
			return nil, bad("max_tokens", "%d is out of range; send a value of at least 1", *r.MaxTokens)
		}
		s.MaxTokens = uint32(*r.MaxTokens)
	}
	if total := uint64(len(s.Prompt)) + uint64(s.MaxTokens); total > uint64(world.MaxTokens) {
		return nil, bad("max_tokens", "%d prompt tokens and %d tokens to generate are %d tokens; send at most %d in total", len(s.Prompt), s.MaxTokens, total, world.MaxTokens)
	}
	if r.Temperature != nil {
		if *r.Temperature < 0 || *r.Temperature > 2 {
			return nil, bad("temperature", "%v is out of range; send a value from 0 to 2", *r.Temperature)
		}
		s.Temperature = float32(*r.Temperature)
	}
	if r.TopP != nil {
		if *r.TopP <= 0 || *r.TopP > 1 {
			return nil, bad("top_p", "%v is out of range; send a value above 0 and at most 1", *r.TopP)
		}
		// A value that float32 would round to 0 selects the likeliest token.
		s.TopP = max(float32(*r.TopP), math.SmallestNonzeroFloat32)
	}
	if r.CacheSalt != nil {
		if n := len(*r.CacheSalt); n == 0 || n > maxSalt {
			return nil, bad("cache_salt", "has %d bytes; send 1 to %d bytes", n, maxSalt)
		}
		s.CacheSalt = *r.CacheSalt
	}
	s.Seed = rand.Uint64() // any seed will do if the client sends none
	if r.Seed != nil {
		s.Seed = uint64(*r.Seed)
	}
	if err := r.nothingMore(); err != nil {
		return nil, err
	}
	if s.StopTokens, err = r.stops(world, bytesAreTokens); err != nil {
		return nil, err
	}
	if err := r.ask(s, world); err != nil {
		return nil, err
	}
	return s, fits(s)
}

// fits checks the message size, including the whole answer for a replay.
func fits(s *tangramv1.Submit) error {
	if size := proto.Size(s) + maxVarint32*int(s.MaxTokens); size > maxSubmit {
		return bad("prompt", "prompt and answer take up to %d bytes in a message to a rank; send a shorter prompt or a smaller max_tokens for at most %d bytes", size, maxSubmit)
	}
	return nil
}

// nothingMore rejects options that are not supported.
func (r *completionRequest) nothingMore() error {
	switch {
	case r.N != nil && *r.N != 1:
		return bad("n", "%d choices are not supported; send 1", *r.N)
	case r.BestOf != nil && *r.BestOf != 1:
		return bad("best_of", "%d is not supported; send 1", *r.BestOf)
	case r.Echo:
		return bad("echo", "is not supported; remove the field")
	case r.Logprobs != nil:
		return bad("logprobs", "is not supported; remove the field")
	case r.Suffix != "":
		return bad("suffix", "is not supported; remove the field")
	case len(r.User) > maxUser:
		return bad("user", "has %d bytes; send at most %d bytes", len(r.User), maxUser)
	case r.StreamOptions != nil && !r.Stream:
		return bad("stream_options", "is only supported with stream: true; set stream or remove the field")
	}
	return nil
}

type tokenInfo struct {
	LogitHash string `json:"logit_hash"` // 16 hex digits
	Position  uint32 `json:"position"`
	Rank      string `json:"rank"` // member that computed it
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

// notYet is the usage in all chunks but the last: null, as in OpenAI's API.
var notYet = &usage{PromptTokens: -1}

func (u *usage) MarshalJSON() ([]byte, error) {
	if u == notYet {
		return []byte("null"), nil
	}
	type plain usage
	return json.Marshal((*plain)(u))
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
