package gateway

import tangramv1 "tangram.dev/proto/tangram/v1"

// Bytes that a request holds until it is answered, estimated from above.
const (
	bytesPerRequest = 32 << 10 // goroutine, buffers of the connection, headers
	bytesPerPrompt  = 16       // of a token: in the request, and once more in a Submit that is sent again
	bytesPerToken   = 48       // of a token of the answer: in the request, in the answer and in its JSON
	bytesPerHash    = 208      // of a token that is answered with its hash, position and rank
	bytesPerPending = 88       // of a token that the client has not taken, in a slice that grows by doubling

	bytesPerLogprobs = 160 // of the log probabilities of a token: their message
	bytesPerLogprob  = 16  // of one of them
)

// holds is the bytes that the request holds until it is answered, however slowly its client reads.
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

// holdsStreamed: chunks are not kept; tokens are, if their reader is slow.
func holdsStreamed(s *tangramv1.Submit) int64 {
	perToken := int64(bytesPerPrompt + bytesPerPending)
	if s.Logprobs != nil {
		perToken += bytesPerLogprobs + bytesPerLogprob*(1+int64(*s.Logprobs))
	}
	return bytesPerRequest + bytesPerPrompt*int64(len(s.Prompt)) + perToken*int64(s.MaxTokens)
}
