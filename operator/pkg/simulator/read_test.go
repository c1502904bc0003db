package simulator

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const azureHead = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

func packed(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.String()
}

// Forms of published traces, and their common alterations.
func TestRead_WhenFormatsDiffer(t *testing.T) {
	two := []Request{{Prompt: 10, Output: 3}, {At: 4.5, Prompt: 20, Output: 4}}
	for name, c := range map[string]struct {
		text, format string
		empty        int
	}{
		"azure":                             {azureHead + "2024-05-12 00:00:00.5,10,3\n2024-05-12 00:00:05,20,4\n", FormatAzure, 0},
		"azure, with a zone":                {azureHead + "2024-05-12 00:00:00.500000+00:00,10,3\n2024-05-12 00:00:05+00:00,20,4\n", FormatAzure, 0},
		"azure, in no order":                {azureHead + "2024-05-12 00:00:05,20,4\n2024-05-12 00:00:00.5,10,3\n", FormatAzure, 0},
		"azure, with a column more":         {"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-01 00:00:00,2,10,3\n2024-10-01 00:00:04.5,0,20,4\n", FormatAzure, 0},
		"azure, with a byte order mark":     {"\ufeff" + azureHead + "2024-05-12 00:00:00.5,10,3\n2024-05-12 00:00:05,20,4\n", FormatAzure, 0},
		"azure, lines as of Windows":        {"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-12 00:00:00.5,10,3\r\n2024-05-12 00:00:05,20,4\r\n", FormatAzure, 0},
		"azure, a row without an answer":    {azureHead + "2024-05-12 00:00:00.5,10,3\n2024-05-12 00:00:02,7,0\n2024-05-12 00:00:05,20,4\n", FormatAzure, 1},
		"azure, packed":                     {packed(t, azureHead+"2024-05-12 00:00:00.5,10,3\n2024-05-12 00:00:05,20,4\n"), FormatAzure, 0},
		"mooncake":                          {`{"timestamp":0,"input_length":10,"output_length":3}` + "\n" + `{"timestamp":4500,"input_length":20,"output_length":4}`, FormatMooncake, 0},
		"mooncake, of a clock":              {`{"timestamp":1700000000500,"input_length":10,"output_length":3}` + "\n" + `{"timestamp":1700000005000,"input_length":20,"output_length":4}`, FormatMooncake, 0},
		"mooncake, with a byte order mark":  {"\ufeff" + `{"timestamp":0,"input_length":10,"output_length":3}` + "\n" + `{"timestamp":4500,"input_length":20,"output_length":4}`, FormatMooncake, 0},
		"mooncake, in no order":             {`{"timestamp":4500,"input_length":20,"output_length":4}` + "\n" + `{"timestamp":0,"input_length":10,"output_length":3}`, FormatMooncake, 0},
		"mooncake, whole numbers with .0":   {`{"timestamp":0,"input_length":10.0,"output_length":3}` + "\n" + `{"timestamp":4.5e3,"input_length":20,"output_length":4.0}`, FormatMooncake, 0},
		"mooncake, a row without an answer": {`{"timestamp":0,"input_length":10,"output_length":3}` + "\n\n" + `{"timestamp":1,"input_length":10,"output_length":0}` + "\n" + `{"timestamp":4500,"input_length":20,"output_length":4}`, FormatMooncake, 1},
	} {
		for _, format := range []string{"", c.format} {
			trace, err := Read(strings.NewReader(c.text), format)
			require.NoError(t, err, name)
			require.Equal(t, Trace{Format: c.format, Requests: two, Empty: c.empty}, trace, name)
		}
	}
	trace, err := Read(strings.NewReader("10 3\n\n20\t4\n7 0\n"), "")
	require.NoError(t, err)
	require.Equal(t, Trace{Format: FormatRollout, Requests: []Request{{Prompt: 10, Output: 3}, {Prompt: 20, Output: 4}}, Empty: 1}, trace)
}

// Ids are numbers of 64 bits, and no two are confused.
func TestRead_WhenIDsHave64Bits(t *testing.T) {
	line := func(ids string) string {
		return `{"timestamp":0,"input_length":600,"output_length":4,"hash_ids":[` + ids + "]}\n"
	}
	blocks := func(text string) (out [][]int32) {
		trace, err := Read(strings.NewReader(text), "")
		require.NoError(t, err)
		for _, q := range trace.Requests {
			out = append(out, q.Blocks)
		}
		return out
	}
	require.Equal(t, [][]int32{{0, 1}, {0, 2}, {3, 2}}, blocks(line("18446744073709551615,9223372036854775808")+line("18446744073709551615,7")+line("0,7")))
	require.Equal(t, [][]int32{{0, 1}, {2, 1}}, blocks(line("1,-9223372036854775808")+line("4294967297,-9223372036854775808")))
}

// The same prompts, described by blocks of 512 and of 16 tokens.
func TestRead_WhenBlocksAreSmaller(t *testing.T) {
	text := func(size int) string {
		var out strings.Builder
		for _, prompt := range [][2]int{{1300, 1 << 20}, {1300, 512}, {1300, 520}, {700, 1 << 20}} { // tokens, and the first that is its own
			var ids []int
			for b := range (prompt[0] + size - 1) / size {
				id := b
				if (b+1)*size > prompt[1] {
					id += 1000 * prompt[1]
				}
				ids = append(ids, id)
			}
			list, err := json.Marshal(ids)
			require.NoError(t, err)
			fmt.Fprintf(&out, `{"timestamp":0,"input_length":%d,"output_length":1,"hash_ids":%s}`+"\n", prompt[0], list)
		}
		return out.String()
	}
	want := [][]int32{{0, 1, 2}, {0, 3, 4}, {0, 5, 6}}
	for _, size := range blockSizes {
		trace, err := Read(strings.NewReader(text(size)), "")
		require.NoError(t, err)
		for i, blocks := range want {
			require.Equal(t, blocks, trace.Requests[i].Blocks, "%d tokens, prompt %d", size, i)
		}
		require.Equal(t, int32(0), trace.Requests[3].Blocks[0])
		require.Len(t, trace.Requests[3].Blocks, 2)
	}
}

// Each message names the line, the actual and the expected value.
func TestRead_WhenTraceIsInvalid(t *testing.T) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:3d74974cebb7\nsize 132054902\n"
	hashes := func(prompt, ids int) string {
		return fmt.Sprintf(`{"timestamp":0,"input_length":%d,"output_length":1,"hash_ids":[%s1]}`+"\n", prompt, strings.Repeat("1,", ids-1))
	}
	for _, c := range [][2]string{
		{pointer, "found a Git LFS pointer instead of the trace of 132054902 bytes; run git lfs pull in the repository of the trace"},
		{"\x28\xb5\x2f\xfd....", "found a zstd file; convert it to text or gzip"},
		{"PAR1....", "found a Parquet file; convert it"},
		{"\x1f\x8b\x08", "gzip file is damaged"},
		{packed(t, azureHead+"2024-05-12 00:00:00.5,10,3\n")[:40], "unexpected EOF"},
		{"\xff\xfeT\x00", "text is UTF-16; convert it to UTF-8"},
		{"", "trace is empty"},
		{"yesterday\n", `line 1: "yesterday"; want a JSON object (format mooncake), a CSV header`},
		{"Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n", `line 1: no column TIMESTAMP in "Timestamp,Model,Request tokens,Response tokens"; want TIMESTAMP, ContextTokens, GeneratedTokens`},
		{azureHead + "yesterday,1,1\n", `line 2: TIMESTAMP is "yesterday"; want a time like`},
		{azureHead + "2024-05-12 00:00:00,1\n", "line 2 has 2 fields, the header has 3"},
		{azureHead + "2024-05-12 00:00:00,1,x\n", `line 2: GeneratedTokens is "x"; want a whole number`},
		{azureHead + "2024-05-12 00:00:00,1,-1\n", "line 2: found 1 prompt tokens and -1 output tokens; want 1 to 16777216 each"},
		{`{"timestamp":0,"input_length":5}`, "line 1: output_length is missing"},
		{`{"timestamp":null,"input_length":5,"output_length":5}`, "line 1: timestamp is missing"},
		{"\n" + `{"timestamp":"0","input_length":5,"output_length":5}`, `line 2: timestamp is "\"0\""; want milliseconds`},
		{`{"timestamp":0,"input_length":5.5,"output_length":5}`, `line 1: input_length is "5.5"; want a whole number`},
		{`{"timestamp":0,"input_length":-5,"output_length":5}`, "line 1: found -5 prompt tokens and 5 output tokens"},
		{`{"timestamp":0,"input_length":5,"output_length":5,"hash_ids":["a"]}`, `line 1: hash_ids[0] is "\"a\""; want a whole number of 64 bits`},
		{`{"timestamp":0,"input_length":5,"output_length":5,"hash_ids":[null]}`, `line 1: hash_ids[0] is "null"`},
		{`{"timestamp":0,"input_length":5,"output_length":5,"hash_ids":7}`, `line 1: hash_ids is "7"; want a list of numbers`},
		{"{", `line 1: "{"; want a JSON object`},
		{hashes(600, 2) + hashes(600, 3), "line 2: found 600 input tokens and 3 hash_ids; want one ID per 512 tokens"},
		{hashes(600, 4), "line 1: found 600 input tokens and 4 hash_ids; want one ID per 512 or 256 or 128 or 64 or 32 or 16 tokens"},
		{"5 6\n7\n", `line 2: "7"; want two numbers, prompt and output tokens`},
		{"5 6\n7 x\n", `line 2: the output is "x"; want a whole number`},
		{"{" + strings.Repeat(" ", mostLine), "line 1 is larger than 16 MiB"},
	} {
		_, err := Read(strings.NewReader(c[0]), "")
		require.ErrorContains(t, err, c[1])
		require.Less(t, len(err.Error()), 300)
		require.NotContains(t, err.Error(), "json:")
		require.NotContains(t, err.Error(), "strconv")
	}
	_, err := Read(strings.NewReader("5 6\n"), "csv")
	require.ErrorContains(t, err, `format is "csv"; want mooncake, azure or rollout`)
}

// FuzzRead: any file is rejected with a short error, or yields valid requests.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{azureHead + "2024-05-12 00:00:00.5,10,3\n", "5 6\n", "\ufeff{}", "\x1f\x8b\x08",
		`{"timestamp":0,"input_length":600,"output_length":3,"hash_ids":[18446744073709551615,-1]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		trace, err := Read(bytes.NewReader(data), "")
		if err != nil {
			require.Less(t, len(err.Error()), 600)
			return
		}
		at := 0.0
		for i, q := range trace.Requests {
			require.NoError(t, q.check())
			require.False(t, math.IsNaN(q.At))
			require.GreaterOrEqual(t, q.At, at)
			require.True(t, i > 0 || q.At == 0)
			require.True(t, len(q.Blocks) == 0 || len(q.Blocks) == (q.Prompt+BlockTokens-1)/BlockTokens)
			at = q.At
		}
	})
}
