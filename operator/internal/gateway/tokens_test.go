package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	tangramv1 "tangram.dev/proto/tangram/v1"
)

// large is a world of one engine with the vocabulary of a real model. It answers with one token that is not a byte.
func large(t *testing.T) (send func(body string) (int, string), submitted chan *tangramv1.Submit) {
	t.Helper()
	submitted = make(chan *tangramv1.Submit, 16)
	e := &engine{world: &tangramv1.World{World: "w", Epoch: 1, MaxTokens: 4096, Vocabulary: 151936}, on: func(s *tangramv1.Submit, send func(*tangramv1.ServeReply)) {
		submitted <- s
		send(token(s, 0, 15477, tangramv1.Finish_FINISH_STOP)) // its low byte is "u"
	}}
	e.world.Members = []*tangramv1.WorldMember{{Member: "m", Accepts: true}}
	e.listen(t, "")
	e.world.Members[0].Frontend = e.address
	s, _, pool := before(t, Options{}, e)
	require.Eventually(t, pool.Ready, soon, time.Millisecond)
	return func(body string) (int, string) {
		code, _, text := post(t, s, body)
		return code, text
	}, submitted
}

// A gateway without the model's tokenizer rejects text: bytes are not the tokens of a real model.
func TestTextPrompt_WhenTokenizerIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send, submitted := large(t)
		for body, param := range map[string]string{
			`{"prompt":"Hello"}`:                   "prompt",
			`{"prompt":["Hello"]}`:                 "prompt",
			`{"prompt":""}`:                        "prompt",
			`{"prompt":[72,105],"stop":"z"}`:       "stop",
			`{"prompt":[72,105],"stop":["a","b"]}`: "stop",
		} {
			code, text := send(body)
			require.Equal(t, http.StatusBadRequest, code, "%s: %s", body, text)
			require.Contains(t, text, `"param":"`+param+`"`, body)
			require.Contains(t, text, "151936", body)
		}
		require.Empty(t, submitted)
	})
}

// An answer of such a model has token ids, and no text made of their low bytes.
func TestAnswer_WhenTokenizerIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send, submitted := large(t)
		code, text := send(`{"prompt":[9707,151935],"stop_token_ids":[151645]}`)
		require.Equal(t, http.StatusOK, code, text)
		var got completion
		require.NoError(t, json.Unmarshal([]byte(text), &got))
		require.Empty(t, got.Choices[0].Text)
		require.Equal(t, []uint32{15477}, got.Choices[0].TokenIDs)
		s := <-submitted
		require.Equal(t, []uint32{9707, 151935}, s.Prompt)
		require.Equal(t, []uint32{151645}, s.StopTokens)
		code, text = send(`{"prompt":[9707],"stream":true}`)
		require.Equal(t, http.StatusOK, code, text)
		require.Contains(t, text, `"text":"","logprobs":null,"finish_reason":"stop","token_ids":[15477]`)
	})
}

// encoding/json reads null as 0, which is a token.
func TestTokenIDsRejectNull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send, submitted := large(t)
		for body, param := range map[string]string{
			`{"prompt":[72,null,105]}`:                       "prompt",
			`{"prompt":[null]}`:                              "prompt",
			`{"prompt":[72],"stop_token_ids":[null]}`:        "stop_token_ids",
			`{"prompt":[72],"stop_token_ids":[1,-2]}`:        "stop_token_ids",
			`{"prompt":[72],"stop_token_ids":"1"}`:           "stop_token_ids",
			`{"prompt":[72],"stop_token_ids":[99999999999]}`: "stop_token_ids",
		} {
			code, text := send(body)
			require.Equal(t, http.StatusBadRequest, code, "%s: %s", body, text)
			require.Contains(t, text, `"param":"`+param+`"`, body)
		}
		require.Empty(t, submitted)
	})
}

// Lists are bounded, and stop tokens are a set.
func TestStopListsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send, submitted := large(t)
		ids := func(n int) string { return strings.TrimSuffix(strings.Repeat("7,", n), ",") }
		code, text := send(fmt.Sprintf(`{"prompt":[1],"stop_token_ids":[%s]}`, ids(maxStopTokens+1)))
		require.Equal(t, http.StatusBadRequest, code, text)
		require.Contains(t, text, `"param":"stop_token_ids"`)
		code, text = send(fmt.Sprintf(`{"prompt":[1],"stop_token_ids":[9,%s]}`, ids(maxStopTokens-1)))
		require.Equal(t, http.StatusOK, code, text)
		require.Equal(t, []uint32{7, 9}, (<-submitted).StopTokens)
		code, text = send(`{"prompt":[1],"stop":["a","b","c","d","e"]}`)
		require.Equal(t, http.StatusBadRequest, code, text)
		require.Contains(t, text, "send at most 4")
	})
}
