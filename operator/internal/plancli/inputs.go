package plancli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"tangram.dev/operator/pkg/load"
)

// format is a file format, with the marks that identify it in the file's first bytes.
type format struct {
	name  string
	marks []string
}

// loadFormats has the formats of ReadLoads, by name.
var loadFormats = []format{
	{"vllm", []string{`"load_history"`}},
	{"sglang", []string{`"logical_count"`}},
	{"ascend", []string{"vllm:phy_expert_heat"}},
	{"json", []string{`"tangram_load"`, `"windows"`, `"by_source"`}},
	{"csv", []string{"window,layer,", "window,source,"}},
}

var placementFormats = []format{
	{"sglang", []string{`"physical_to_logical_map"`}},
	{"ascend", []string{`"moe_layer_count"`, `"layer_list"`}},
	{"json", []string{"[[["}},
	{"vllm", []string{"[["}},
}

func names(formats []format) string {
	out := make([]string, len(formats))
	for i, f := range formats {
		out[i] = f.name
	}
	return strings.Join(out, ", ")
}

// LoadFormats and PlacementFormats are the names for help texts.
var (
	LoadFormats      = names(loadFormats)
	PlacementFormats = names(placementFormats)
)

const headBytes = 64 << 10

// open opens a file ("-": stdin). The format is the requested one, or the only one that matches the first bytes.
func open(path, asked string, formats []format, stdin io.Reader) (io.Reader, string, func(), error) {
	in, done := stdin, func() {}
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, "", nil, err
		}
		in, done = f, func() { _ = f.Close() } // only read
	}
	r := bufio.NewReaderSize(in, headBytes)
	if asked != "auto" {
		for _, f := range formats {
			if f.name == asked {
				return r, asked, done, nil
			}
		}
		done()
		return nil, "", nil, fmt.Errorf("unknown format %q; want auto, %s", asked, names(formats))
	}
	head, err := r.Peek(headBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		done()
		return nil, "", nil, fmt.Errorf("%s: %w", path, err)
	}
	name, err := guess(head, formats)
	if err != nil {
		done()
		return nil, "", nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, name, done, nil
}

// foreign has common files of other formats, by their first bytes without spaces, and advice on each.
var foreign = []struct{ mark, advice string }{
	{"layer_id,expert_id,count", "found a CSV file of SGLang, which has the counts of one rank and omits experts without tokens; add up the files of all ranks and write " +
		"window,layer,expert,tokens with a line for every expert of every layer, or record with SGLang's mode stat (--format sglang)"},
	{"PK\x03\x04", "found a PyTorch or zip file; convert it to JSON (torch.load, then tolist)"},
	{"\x1f\x8b", "found a gzip file; decompress it"},
	{"version https://git-lfs", "found a Git LFS pointer instead of the file; run git lfs pull"},
}

// guess returns the only format that matches the first bytes.
func guess(head []byte, formats []format) (string, error) {
	squeezed := string(bytes.Join(bytes.Fields(head), nil))
	var found []string
	for _, f := range formats {
		for _, mark := range f.marks {
			if strings.HasPrefix(mark, "[") && strings.HasPrefix(squeezed, mark) || !strings.HasPrefix(mark, "[") && strings.Contains(squeezed, mark) {
				found = append(found, f.name)
				break
			}
		}
	}
	if len(found) == 2 && strings.HasPrefix(squeezed, "[[[") { // triply nested lists
		found = found[:1]
	}
	if len(found) == 1 {
		return found[0], nil
	}
	for _, f := range foreign {
		if strings.HasPrefix(squeezed, strings.ReplaceAll(f.mark, " ", "")) {
			return "", errors.New(f.advice)
		}
	}
	switch {
	case len(head) == 0:
		return "", fmt.Errorf("file is empty; want one of the formats %s", names(formats))
	case len(found) == 0:
		return "", fmt.Errorf("the first %d bytes match none of the formats %s; set the format of the file", len(head), names(formats))
	}
	return "", fmt.Errorf("the first %d bytes match the formats %s; set the format of the file", len(head), strings.Join(found, " and "))
}

// ReadLoads reads a file in one of LoadFormats, or "auto". lies is the placement in an Ascend scrape, otherwise nil.
func ReadLoads(path, asked string, o load.Options, stdin io.Reader) (trace *load.Trace, lies load.Placement, err error) {
	r, found, done, err := open(path, asked, loadFormats, stdin)
	if err != nil {
		return nil, nil, fmt.Errorf("--load: %w", err)
	}
	defer done()
	switch found {
	case "vllm":
		trace, err = load.ReadVLLM(r, o)
	case "sglang":
		trace, err = load.ReadSGLang(r, o)
	case "ascend":
		trace, lies, err = readScrape(r, o)
	case "json":
		trace, err = load.ReadJSON(r, o)
	default:
		trace, err = load.ReadCSV(r, o)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return trace, lies, nil
}

// readScrape takes the counters since the start of the engine as one window.
func readScrape(r io.Reader, o load.Options) (*load.Trace, load.Placement, error) {
	scrape, err := load.ReadAscendMetrics(r, o)
	if err != nil {
		return nil, nil, err
	}
	start := &load.AscendScrape{Placement: scrape.Placement}
	for _, ranks := range scrape.Tokens {
		var zero [][]float64
		for _, slots := range ranks {
			zero = append(zero, make([]float64, len(slots)))
		}
		start.Tokens = append(start.Tokens, zero)
	}
	window, err := scrape.Since(start)
	if err != nil {
		return nil, nil, err
	}
	return &load.Trace{Windows: [][][]float64{window}}, scrape.Placement, nil
}

// ReadPlacement reads a file in one of PlacementFormats, or "auto". SGLang's and vLLM's maps do not state the ranks.
func ReadPlacement(path, asked string, ranks int, o load.Options, stdin io.Reader) (load.Placement, error) {
	r, found, done, err := open(path, asked, placementFormats, stdin)
	if err != nil {
		return nil, fmt.Errorf("--old: %w", err)
	}
	defer done()
	var p load.Placement
	switch found {
	case "sglang":
		p, err = load.ReadSGLangMap(r, ranks, o)
	case "ascend":
		p, err = load.ReadAscendMap(r, o)
	case "vllm":
		p, err = load.ReadVLLMMap(r, ranks, o)
	default:
		p, err = load.ReadPlacement(r, o)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// Values of Demand's `which`.
const (
	Forecast = "forecast"
	Last     = "last"
	Sum      = "sum"
)

// Demand returns the load to plan for: the forecast after the last window (with one window: that window), the last
// window, or the sum.
func Demand(t *load.Trace, which string) (loads [][]float64, said string, err error) {
	n := len(t.Windows)
	switch {
	case which == Last || which == Forecast && n == 1:
		return t.Windows[n-1], fmt.Sprintf("the last of %d windows", n), nil
	case which == Sum:
		all, err := t.Every(n)
		if err != nil {
			return nil, "", err
		}
		return all.Windows[0], fmt.Sprintf("the sum of %d windows", n), nil
	case which == Forecast:
		p, err := load.NewPredictor(len(t.Windows[0]), len(t.Windows[0][0]))
		if err != nil {
			return nil, "", err
		}
		for i, w := range t.Windows {
			if err := p.Observe(w); err != nil {
				return nil, "", fmt.Errorf("window %d: %w", i, err)
			}
		}
		return p.Forecast(), fmt.Sprintf("the forecast from %d windows", n), nil
	}
	return nil, "", fmt.Errorf("demand is %q; want %s, %s or %s", which, Forecast, Last, Sum)
}
