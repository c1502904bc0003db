package gateway

import (
	"errors"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// FuzzCompletion: any client input becomes a valid engine request, or a short error that names a field.
func FuzzCompletion(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","prompt":"a","max_tokens":3,"temperature":0,"top_p":0.5,"seed":-1,"stop":"z","stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[1,2,3],"stop":["a","b"],"stop_token_ids":[0,99],"n":1,"best_of":1,"user":"u"}`,
		`{"prompt":["a"],"logit_bias":{"1":2}}`,
		`{"prompt":"` + strings.Repeat("a", 70) + `"}`,
		`{"prompt":[4294967296],"max_tokens":9223372036854775807}`,
		`{"prompt":"a","top_p":1e-60}`,
		`{"prompt":"a","stop":"\u007f"}`,
		`{"prompt":"a","max_tokens":1` + strings.Repeat("0", 5000) + `}`,
		`{"` + strings.Repeat("b", 5000) + `":1}`, `{"":1}`,
		`null`, `[]`, `{`, `{"prompt":null}`,
	} {
		f.Add([]byte(body))
	}
	world := &tangramv1.World{MaxTokens: 64, Vocabulary: 100}
	f.Fuzz(func(t *testing.T, body []byte) {
		request, err := parse(body)
		var s *tangramv1.Submit
		if err == nil {
			s, err = request.submit(world, false)
		}
		if err != nil {
			var field *fieldError
			if !errors.As(err, &field) || field.field == "" {
				t.Fatalf("%T %v names no field", err, err)
			}
			if text := err.Error(); len(text) > 1024 || len(field.field) > 1024 || !utf8.ValidString(text) {
				t.Fatalf("an answer of %d bytes: %.200q", len(text), text)
			}
			return
		}
		if n := len(s.Prompt); n == 0 || s.MaxTokens == 0 || uint64(n)+uint64(s.MaxTokens) > uint64(world.MaxTokens) {
			t.Errorf("%d and %d tokens in a world of %d", n, s.MaxTokens, world.MaxTokens)
		}
		for _, id := range append(s.Prompt, s.StopTokens...) {
			if id >= world.Vocabulary {
				t.Errorf("token %d of a vocabulary of %d", id, world.Vocabulary)
			}
		}
		if !(s.Temperature >= 0 && s.Temperature <= 2) || !(s.TopP > 0 && s.TopP <= 1) || math.IsNaN(float64(s.TopP)) {
			t.Errorf("temperature %v, top_p %v", s.Temperature, s.TopP)
		}
	})
}
