package gateway

import tangramv1 "tangram.dev/proto/tangram/v1"

// Upper estimates of the bytes that a request holds until it is answered.
const (
	bytesPerRequest = 32 << 10 // goroutine, connection buffers, headers
	bytesPerPrompt  = 16       // per prompt token: in the request, and again in a replayed Submit
	bytesPerToken   = 48       // per answer token: in the request, in the answer and in its JSON
	bytesPerHash    = 208      // per answer token with its hash, position and rank
	bytesPerPending = 88       // per token that the client has not read, in a slice that grows by doubling

	bytesPerLogprobs = 160 // per token with log probabilities: their message
	bytesPerLogprob  = 16  // per log probability
)

// holds returns the bytes that the request holds until it is answered, however slowly its client reads.
func (a *answer) holds(s *tangramv1.Submit) int64 {
	if a.stream {
		return holdsStreamed(s)
	}
	generated := int64(s.MaxTokens)
	bytes := bytesPerRequest + bytesPerPrompt*int64(len(s.Prompt))
	if a.hashes {
		return bytes + (bytesPerToken+bytesPerHash)*generated
	}
	return bytes + bytesPerToken*generated
}

// holdsStreamed returns the bytes of a streamed request. Chunks are not kept; tokens are, if their client is slow.
func holdsStreamed(s *tangramv1.Submit) int64 {
	perToken := int64(bytesPerPrompt + bytesPerPending)
	if s.Logprobs != nil {
		perToken += bytesPerLogprobs + bytesPerLogprob*(1+int64(*s.Logprobs))
	}
	return bytesPerRequest + bytesPerPrompt*int64(len(s.Prompt)) + perToken*int64(s.MaxTokens)
}
