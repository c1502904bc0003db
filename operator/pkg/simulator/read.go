package simulator

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Trace of requests.
type Trace struct {
	Format   string    // FormatMooncake, ...
	Requests []Request // in order of time; the first at second 0
	Empty    int       // dropped lines without prompt or output tokens
}

// Formats of traces.
const (
	// FormatMooncake: lines of {"timestamp": milliseconds, "input_length", "output_length", "hash_ids"} (github.com/kvcache-ai/Mooncake, FAST25-release/traces).
	// An id stands for a block of 512 tokens, or of 16 to 256; the number of ids of the prompts determines which.
	FormatMooncake = "mooncake"
	// FormatAzure: CSV with the columns TIMESTAMP, ContextTokens and GeneratedTokens (github.com/Azure/AzurePublicDataset, 2023 to 2025).
	FormatAzure = "azure"
	// FormatRollout: one sequence per line, "prompt output", all present at second 0.
	FormatRollout = "rollout"
)

// mostLine is the longest line of a trace: a prompt of a million tokens has 65,536 ids of 16 tokens, of 20 digits.
const mostLine = 16 << 20

// Read a trace, compressed by gzip or not. format "": detected from its first line. Errors name the line, the actual
// and the expected value.
func Read(r io.Reader, format string) (Trace, error) {
	text, err := plain(r)
	if err != nil {
		return Trace{}, err
	}
	if format == "" {
		if format, err = formatOf(text); err != nil {
			return Trace{}, err
		}
	}
	out := Trace{Format: format}
	switch format {
	case FormatMooncake:
		err = readMooncake(text, &out)
	case FormatAzure:
		err = readAzure(text, &out)
	case FormatRollout:
		err = readRollout(text, &out)
	default:
		return Trace{}, fmt.Errorf("format is %q; want %s, %s or %s", format, FormatMooncake, FormatAzure, FormatRollout)
	}
	if err != nil {
		return Trace{}, err
	}
	ordered(out.Requests)
	if len(out.Requests) > 0 {
		for first, i := out.Requests[0].At, 0; i < len(out.Requests); i++ {
			out.Requests[i].At -= first
		}
	}
	return out, nil
}

// add a line of the trace. Its clock may have any origin: only differences matter.
func (t *Trace) add(q Request) error {
	if q.Prompt == 0 || q.Output == 0 {
		t.Empty++
		return nil
	}
	if !(math.Abs(q.At) < latest) {
		return fmt.Errorf("arrival time is %v; want a finite number of seconds", q.At)
	}
	if err := q.checkTokens(); err != nil {
		return err
	}
	t.Requests = append(t.Requests, q)
	return nil
}

// plain returns the text of a file, decompressed and without a byte order mark.
func plain(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	head := func(n int) []byte {
		out, _ := in.Peek(n) // a shorter file has less
		return out
	}
	if bytes.HasPrefix(head(2), []byte{0x1f, 0x8b}) {
		unpacked, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("gzip file is damaged: %w", err)
		}
		in = bufio.NewReaderSize(unpacked, 1<<16)
	}
	for name, magic := range map[string]string{"zstd": "\x28\xb5\x2f\xfd", "bzip2": "BZh", "xz": "\xfd7zXZ", "zip": "PK\x03\x04", "Parquet": "PAR1"} {
		if bytes.HasPrefix(head(6), []byte(magic)) {
			return nil, fmt.Errorf("found a %s file; convert it to text or gzip", name)
		}
	}
	if bytes.HasPrefix(head(2), []byte{0xff, 0xfe}) || bytes.HasPrefix(head(2), []byte{0xfe, 0xff}) {
		return nil, errors.New("text is UTF-16; convert it to UTF-8")
	}
	if bytes.HasPrefix(head(3), []byte("\xef\xbb\xbf")) {
		_, _ = in.Discard(3) // never fails: they were peeked
	}
	if pointer := head(256); bytes.HasPrefix(pointer, []byte("version https://git-lfs.github.com/spec/")) {
		size := ""
		for line := range strings.Lines(string(pointer)) {
			if n, found := strings.CutPrefix(line, "size "); found {
				size = fmt.Sprintf(" of %s bytes", strings.TrimSpace(n))
			}
		}
		return nil, fmt.Errorf("found a Git LFS pointer instead of the trace%s; run git lfs pull in the repository of the trace", size)
	}
	return in, nil
}

// formatOf detects the format of a trace from its first line.
func formatOf(in *bufio.Reader) (string, error) {
	head, _ := in.Peek(4096)
	line, _, _ := strings.Cut(strings.TrimLeft(string(head), "\r\n"), "\n")
	line = strings.TrimRight(line, "\r")
	var prompt, output int
	switch _, err := fmt.Sscan(line, &prompt, &output); {
	case strings.HasPrefix(strings.TrimSpace(line), "{"):
		return FormatMooncake, nil
	case err == nil:
		return FormatRollout, nil
	case strings.Contains(line, ","):
		return FormatAzure, nil
	case len(head) == 0:
		return "", errors.New("trace is empty")
	}
	return "", fmt.Errorf("line 1: %s; want a JSON object (format mooncake), a CSV header with TIMESTAMP, ContextTokens and GeneratedTokens (azure), or two numbers (rollout)", brief(line))
}

// brief quotes the beginning of an arbitrary line.
func brief(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.Quote(text[:most]) + "..."
	}
	return strconv.Quote(text)
}

// lines calls each for the lines of a text, except empty ones; errors have their numbers.
func lines(in io.Reader, each func(text []byte) error) error {
	scan := bufio.NewScanner(in)
	scan.Buffer(nil, mostLine)
	n := 1
	for ; scan.Scan(); n++ {
		if text := bytes.TrimSpace(scan.Bytes()); len(text) > 0 {
			if err := each(text); err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
		}
	}
	if errors.Is(scan.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d is larger than %d MiB", n, mostLine>>20)
	}
	if scan.Err() != nil {
		return fmt.Errorf("line %d: %w", n, scan.Err())
	}
	return nil
}

// whole parses a whole number in a field of a line.
func whole(field, text string) (int, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return 0, fmt.Errorf("%s is %s; want a whole number", field, brief(text))
	}
	return int(x), nil
}

func readMooncake(in io.Reader, out *Trace) error {
	var ids [][]uint64 // of each request
	sizes := slices.Clone(blockSizes)
	err := lines(in, func(text []byte) error {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			return fmt.Errorf("%s; want a JSON object", brief(string(text)))
		}
		for _, name := range []string{"timestamp", "input_length", "output_length"} {
			if len(fields[name]) == 0 || string(fields[name]) == "null" {
				return fmt.Errorf("%s is missing", name)
			}
		}
		at, err := strconv.ParseFloat(string(fields["timestamp"]), 64)
		if err != nil {
			return fmt.Errorf("timestamp is %s; want milliseconds", brief(string(fields["timestamp"])))
		}
		q := Request{At: at / 1000}
		if q.Prompt, err = whole("input_length", string(fields["input_length"])); err != nil {
			return err
		}
		if q.Output, err = whole("output_length", string(fields["output_length"])); err != nil {
			return err
		}
		blocks, err := idsOf(fields["hash_ids"])
		if err != nil {
			return err
		}
		before := len(out.Requests)
		if err := out.add(q); err != nil || len(out.Requests) == before {
			return err
		}
		if len(blocks) > 0 {
			fits := slices.DeleteFunc(slices.Clone(sizes), func(size int) bool { return (q.Prompt+size-1)/size != len(blocks) })
			if len(fits) == 0 {
				return fmt.Errorf("found %d input tokens and %d hash_ids; want one ID per %s tokens, as in the previous lines", q.Prompt, len(blocks), anyOf(sizes))
			}
			sizes = fits
		}
		ids = append(ids, blocks)
		return nil
	})
	if err != nil {
		return err
	}
	join(out.Requests, ids, sizes[0])
	return nil
}

// blockSizes are the distinguishable block sizes of ids, the largest first. Each divides the first.
var blockSizes = []int{BlockTokens, 256, 128, 64, 32, 16}

func anyOf(sizes []int) string {
	var out []string
	for _, s := range sizes {
		out = append(out, strconv.Itoa(s))
	}
	return strings.Join(out, " or ")
}

// idsOf parses the ids of blocks: whole numbers of 64 bits, signed or unsigned.
func idsOf(list json.RawMessage) ([]uint64, error) {
	if len(list) == 0 {
		return nil, nil
	}
	var numbers []json.RawMessage
	if err := json.Unmarshal(list, &numbers); err != nil {
		return nil, fmt.Errorf("hash_ids is %s; want a list of numbers", brief(string(list)))
	}
	out := make([]uint64, len(numbers))
	for i, n := range numbers {
		id, err := strconv.ParseUint(string(n), 10, 64)
		if err != nil {
			signed, err := strconv.ParseInt(string(n), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("hash_ids[%d] is %s; want a whole number of 64 bits", i, brief(string(n)))
			}
			id = uint64(signed)
		}
		out[i] = id
	}
	return out, nil
}

// join merges ids of blocks of `size` tokens to dense ids of blocks of BlockTokens: two are equal if all their parts
// are.
func join(requests []Request, ids [][]uint64, size int) {
	dense := map[string]int32{}
	for i, blocks := range ids {
		for part := range slices.Chunk(blocks, BlockTokens/size) {
			key := make([]byte, 0, 8*len(part))
			for _, id := range part {
				key = binary.LittleEndian.AppendUint64(key, id)
			}
			id, known := dense[string(key)]
			if !known {
				id = int32(len(dense))
				dense[string(key)] = id
			}
			requests[i].Blocks = append(requests[i].Blocks, id)
		}
	}
}

func readAzure(in io.Reader, out *Trace) error {
	table := csv.NewReader(in)
	table.FieldsPerRecord = -1 // counted here
	head, err := table.Read()
	if err != nil {
		return fmt.Errorf("line 1: want a CSV header: %w", err)
	}
	columns := []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
	var at [3]int
	for i, name := range columns {
		if at[i] = slices.IndexFunc(head, func(h string) bool { return strings.TrimSpace(h) == name }); at[i] < 0 {
			return fmt.Errorf("line 1: no column %s in %s; want %s", name, brief(strings.Join(head, ",")), strings.Join(columns, ", "))
		}
	}
	var first time.Time
	for {
		row, err := table.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err // names the line
		}
		line, _ := table.FieldPos(0)
		if len(row) != len(head) {
			return fmt.Errorf("line %d has %d fields, the header has %d", line, len(row), len(head))
		}
		when, err := timeOf(row[at[0]])
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		if first.IsZero() {
			first = when
		}
		q := Request{At: when.Sub(first).Seconds()}
		if q.Prompt, err = whole(columns[1], row[at[1]]); err == nil {
			q.Output, err = whole(columns[2], row[at[2]])
		}
		if err == nil {
			err = out.add(q)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// timeOf a row: with or without a zone, with or without a fraction.
func timeOf(text string) (time.Time, error) {
	for _, form := range []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", time.RFC3339Nano} {
		if when, err := time.Parse(form, strings.TrimSpace(text)); err == nil {
			return when, nil
		}
	}
	return time.Time{}, fmt.Errorf("TIMESTAMP is %s; want a time like 2024-05-12 00:00:01.5+00:00", brief(text))
}

func readRollout(in io.Reader, out *Trace) error {
	return lines(in, func(text []byte) error {
		var q Request
		fields := strings.Fields(string(text))
		var err error
		if len(fields) != 2 {
			return fmt.Errorf("%s; want two numbers, prompt and output tokens", brief(string(text)))
		}
		if q.Prompt, err = whole("the prompt", fields[0]); err != nil {
			return err
		}
		if q.Output, err = whole("the output", fields[1]); err != nil {
			return err
		}
		return out.add(q)
	})
}

// ordered sorts by time; equal times keep their order.
func ordered(requests []Request) []Request {
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return requests
}
