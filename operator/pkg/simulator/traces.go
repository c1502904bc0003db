package simulator

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
)

// What these are, whence, and their licences: traces/README.md.
var (
	//go:embed traces/mooncake_conversation.jsonl.gz
	conversation []byte
	//go:embed traces/azure_code_2023.csv.gz
	code []byte
)

// Conversation is an hour of chat traffic, with prefixes (Mooncake).
func Conversation() ([]Request, error) {
	r, err := gzip.NewReader(bytes.NewReader(conversation))
	if err != nil {
		return nil, fmt.Errorf("simulator: conversation: %w", err)
	}
	out, _, err := ReadMooncake(r)
	return out, err
}

// Code is an hour of code completion, in bursts (Azure, 2023).
func Code() ([]Request, error) {
	r, err := gzip.NewReader(bytes.NewReader(code))
	if err != nil {
		return nil, fmt.Errorf("simulator: code: %w", err)
	}
	return ReadAzure(r)
}
