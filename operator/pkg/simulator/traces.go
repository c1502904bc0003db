package simulator

import (
	"bytes"
	_ "embed"
)

// Contents, sources and licences: traces/README.md.
var (
	//go:embed traces/mooncake_conversation.jsonl.gz
	conversation []byte
	//go:embed traces/azure_code_2023.csv.gz
	code []byte
)

// Conversation is an hour of chat traffic, with prefixes (Mooncake).
func Conversation() (Trace, error) { return Read(bytes.NewReader(conversation), FormatMooncake) }

// Code is an hour of code completion, in bursts (Azure, 2023).
func Code() (Trace, error) { return Read(bytes.NewReader(code), FormatAzure) }
