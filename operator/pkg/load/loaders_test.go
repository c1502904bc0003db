package load

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

const ascendMapText = `{"moe_layer_count": 2, "layer_list": [
 {"layer_id": 1, "device_count": 2, "device_list": [{"device_id": 1, "device_expert": [2, 0]}, {"device_id": 0, "device_expert": [1]}]},
 {"layer_id": 0, "device_count": 2, "device_list": [{"device_id": 0, "device_expert": [0, 1]}, {"device_id": 1, "device_expert": [2]}]}]}`

const ascendMetrics = `# HELP vllm:phy_expert_heat_total Heat of each physical expert per rank
# TYPE vllm:phy_expert_heat_total counter
vllm:phy_expert_heat_total{rank="0",layer="0",phy_expert_id="0"} %d
vllm:phy_expert_heat_total{rank="0",layer="0",phy_expert_id="1"} 20
vllm:phy_expert_heat_total{rank="1",layer="0",phy_expert_id="0"} 30
vllm:phy_expert_heat_total{rank="1",layer="0",phy_expert_id="1"} 4
# TYPE vllm:phy2log gauge
vllm:phy2log{rank="0",layer="0",phy_expert_id="0",log_expert_id="0"} 1
vllm:phy2log{rank="0",layer="0",phy_expert_id="1",log_expert_id="2"} 0
vllm:phy2log{rank="0",layer="0",phy_expert_id="1",log_expert_id="1"} 1
vllm:phy2log{rank="1",layer="0",phy_expert_id="0",log_expert_id="2"} 1
vllm:phy2log{rank="1",layer="0",phy_expert_id="1",log_expert_id="0"} 1
other_metric 7
`

func TestEngineLoaders(t *testing.T) {
	got, err := ReadVLLM(strings.NewReader(`{"model": {"x": [1, "y"]}, "load_history": [
	 {"step": 3, "logical_expert_load": [[1, 2], [3, 4]]}, {"logical_expert_load": [[5, 6.5], [0, 1e2]]}]}`), Options{Layers: 2, Experts: 2})
	require.NoError(t, err)
	require.Equal(t, [][][]float64{{{1, 2}, {3, 4}}, {{5, 6.5}, {0, 100}}}, got.Windows)
	sum, err := got.Every(5)
	require.NoError(t, err)
	require.Equal(t, [][][]float64{{{6, 8.5}, {3, 104}}}, sum.Windows)
	one, err := got.Select([]int{1})
	require.NoError(t, err)
	require.Equal(t, [][][]float64{{{3, 4}}, {{0, 100}}}, one.Windows)
	_, err = got.Select([]int{2})
	require.ErrorContains(t, err, "layer 2 is wanted; the trace has layers 0..1")
	_, err = got.Every(0)
	require.Error(t, err)

	for _, text := range []string{`{"logical_count": [[1, 2, 3], [4, 5, 6]]}`,
		`{"rank": 0, "logical_count": [[[1, 2, 3], [4, 5, 6]]], "average_utilization_rate_over_window": null}`} {
		got, err = ReadSGLang(strings.NewReader(text), Options{})
		require.NoError(t, err)
		require.Equal(t, [][][]float64{{{1, 2, 3}, {4, 5, 6}}}, got.Windows)
	}

	p, err := ReadSGLangMap(strings.NewReader(`{"physical_to_logical_map": [[0, 1, 2, 0], [2, 1, 0, 1]]}`), 2, Options{Experts: 3})
	require.NoError(t, err)
	require.Equal(t, Placement{{{0, 1}, {2, 0}}, {{2, 1}, {0, 1}}}, p)

	p, err = ReadAscendMap(strings.NewReader(ascendMapText), Options{})
	require.NoError(t, err)
	require.Equal(t, Placement{{{0, 1}, {2}}, {{1}, {2, 0}}}, p)
}

func TestAscendMetrics(t *testing.T) {
	before, err := ReadAscendMetrics(strings.NewReader(fmt.Sprintf(ascendMetrics, 10)), Options{})
	require.NoError(t, err)
	require.Equal(t, Placement{{{0, 1}, {2, 0}}}, before.Placement)
	require.Equal(t, [][][]float64{{{10, 20}, {30, 4}}}, before.Tokens)
	after, err := ReadAscendMetrics(strings.NewReader(strings.Replace(fmt.Sprintf(ascendMetrics, 15), "} 4\n", "} 6\n", 1)), Options{})
	require.NoError(t, err)
	got, err := after.Since(before)
	require.NoError(t, err)
	require.Equal(t, [][]float64{{7, 0, 0}}, got, "5 and 2 more on the two replicas of expert 0")

	_, err = before.Since(after)
	require.ErrorContains(t, err, "layer 0, rank 0, slot 0: its counter went from 15 back to 10")
	moved, err := ReadAscendMetrics(strings.NewReader(strings.Replace(fmt.Sprintf(ascendMetrics, 15), `"1",log_expert_id="0"`, `"1",log_expert_id="1"`, 1)), Options{})
	require.NoError(t, err)
	_, err = moved.Since(before)
	require.ErrorContains(t, err, "layer 0, rank 1, slot 1 held expert 0 and holds 1")

	for want, change := range map[string][2]string{
		"rank is \"x\"; want":                               {`{rank="1",layer="0",phy_expert_id="1"}`, `{rank="x",layer="0",phy_expert_id="1"}`},
		"layer 0, rank 1: slot 0 is missing, slot 1 is not": {"vllm:phy_expert_heat_total{rank=\"1\",layer=\"0\",phy_expert_id=\"0\"} 30\n", ""},
		"layer 0, rank 1, slot 1: load is -4":               {"} 4\n", "} -4\n"},
		"load is NaN":                                       {"} 4\n", "} NaN\n"},
		"layer 0, rank 0, slot 1 is given twice":            {"} 0\n", "} 1\n"},
		"metric vllm:phy2log is missing":                    {"vllm:phy2log", "vllm:other"},
		"label layer is missing":                            {`layer="0",phy_expert_id="1"} 20`, `phy_expert_id="1"} 20`},
		"text format parsing error":                         {"other_metric 7", "other_metric seven"},
		"layer 0, rank 1: vllm:phy2log has 1 slots":         {"vllm:phy2log{rank=\"1\",layer=\"0\",phy_expert_id=\"1\",log_expert_id=\"0\"} 1\n", ""},
		"6 experts do not fit":                              {`log_expert_id="1"} 1`, `log_expert_id="5"} 1`},
		"layer 0 is missing, layer 3 is not":                {`layer="0"`, `layer="3"`},
	} {
		text := fmt.Sprintf(ascendMetrics, 10)
		require.Contains(t, text, change[0])
		_, err := ReadAscendMetrics(strings.NewReader(strings.ReplaceAll(text, change[0], change[1])), Options{})
		require.ErrorContains(t, err, want)
	}
}

// Bad files: the error names format, line and path, and the fault.
func TestLoadersRejectInvalidFiles(t *testing.T) {
	vllm := func(r io.Reader, o Options) error { _, err := ReadVLLM(r, o); return err }
	sglang := func(r io.Reader, o Options) error { _, err := ReadSGLang(r, o); return err }
	sgmap := func(r io.Reader, o Options) error { _, err := ReadSGLangMap(r, 2, o); return err }
	ascend := func(r io.Reader, o Options) error { _, err := ReadAscendMap(r, o); return err }
	own := func(r io.Reader, o Options) error { _, err := ReadJSON(r, o); return err }
	table := func(r io.Reader, o Options) error { _, err := ReadCSV(r, o); return err }
	history := func(rows string) string { return "{\n\"load_history\": [{\n\"logical_expert_load\": " + rows + "}]}" }
	device := func(old, new string) string { return strings.Replace(ascendMapText, old, new, 1) }
	for _, c := range []struct {
		read       func(io.Reader, Options) error
		text, want string
		o          Options
	}{
		{vllm, history("[[1, -2]]"), "vLLM load history: line 3, load_history[0].logical_expert_load[0][1]: load is -2; want 0", Options{}},
		{vllm, history("[[1, NaN]]"), "line 3, load_history[0].logical_expert_load[0]", Options{}},
		{vllm, history("[[1, NaN]]"), "the value is NaN; want a finite number", Options{}},
		{vllm, history("[[Infinity]]"), "the value is Infinity", Options{}},
		{vllm, history("[[1e999]]"), "load is +Inf", Options{}},
		{vllm, history("[[1, null]]"), "[0][1]: a hole: null; want a number of tokens", Options{}},
		{vllm, history("[[1, \"2\"]]"), "[0][1]: a hole: a string", Options{}},
		{vllm, history("[[1, 2], [3]]"), "[1]: ragged: its shape is [1], that of those before it [2]", Options{}},
		{vllm, history("[[1], 2]"), "[1]: ragged", Options{}},
		{vllm, history("[[1], [[2]]]"), "[1][0]: a list more than 2 deep", Options{}},
		{vllm, history("[1, 2]"), "a list of 1 dimensions; want layers by experts", Options{}},
		{vllm, history("7"), "a number; want a list of layers by experts", Options{}},
		{vllm, history("[[]]"), "an empty list", Options{}},
		{vllm, history("[[1, 2]]"), "loads of 2 experts per layer; the model has 3", Options{Experts: 3}},
		{vllm, history("[[1, 2]]"), "loads of 1 layers; the model has 2 MoE layers", Options{Layers: 2}},
		{vllm, history("[[1, 2]]"), "more loads than the limit", Options{MaxValues: 1}},
		{vllm, history("[[1, 2]]"), "more than 10 bytes", Options{MaxBytes: 10}},
		{vllm, history("[[1, 2]]") + "{}", "after the end of the JSON value", Options{}},
		{vllm, history("[[1, 2]"), "vLLM load history: line 3", Options{}},
		{vllm, `{"load_history": [{"logical_expert_load": [[1`, "the file ends here; it was cut off", Options{}},
		{vllm, `{"load_history": []}`, "no window of loads", Options{}},
		{vllm, `{"load_history": [{"step": 1}]}`, `load_history[0]: field "logical_expert_load" is missing`, Options{}},
		{vllm, `{"load_history": [{"logical_expert_load": [[1]], "logical_expert_load": [[2]]}]}`, `field "logical_expert_load" is given twice`, Options{}},
		{vllm, `{"load_history": [{"logical_expert_load": [[1]]}, {"logical_expert_load": [[2, 3]]}]}`, "load_history[1]", Options{}},
		{vllm, `{"load_history": [{"logical_expert_load": [[1]]}], "other": {"a": 1, "a": 2}}`, `field "a" is given twice`, Options{}},
		{vllm, `{"other": ` + strings.Repeat("[", 100), "more than 64 levels deep", Options{}},
		{vllm, `{}`, `the top: field "load_history" is missing`, Options{}},
		{vllm, `[]`, "a list; want an object", Options{}},
		{vllm, ``, "line 1, the top: the file ends here", Options{}},
		{sglang, "PK\x03\x04", "this is a torch file, not JSON", Options{}},
		{sglang, "\x80\x02c", "this is a torch file, not JSON", Options{}},
		{sglang, `{"physical_count": [[1]]}`, `field "logical_count" is missing`, Options{}},
		{sglang, `{"logical_count": [[[1, 2]], [[3, -4]]]}`, "logical_count[1][0][1]: load is -4", Options{}},
		{sgmap, `{"physical_to_logical_map": [[0, 1, 2]]}`, "[0]: 3 physical experts cannot be dealt evenly to 2 ranks", Options{}},
		{sgmap, `{"physical_to_logical_map": [[0, 1], [0, 1, 1, 0]]}`, "[1]: ragged: 4 physical experts, layer 0 has 2", Options{}},
		{sgmap, `{"physical_to_logical_map": [[0, 1], [1, 1]]}`, "layer 1: expert 0 of 2 has no slot", Options{}},
		{sgmap, `{"physical_to_logical_map": [[0, 1.5]]}`, "[0][1]: 1.5; want a whole number", Options{}},
		{ascend, device(`"moe_layer_count": 2`, `"moe_layer_count": 3`), "moe_layer_count says 3, layer_list has 2", Options{}},
		{ascend, device(`"layer_id": 1`, `"layer_id": 0`), "layer_id 0 is given twice", Options{}},
		{ascend, device(`"layer_id": 1`, `"layer_id": 9`), "layer_id 9; with 2 layers", Options{}},
		{ascend, device(`"device_id": 1`, `"device_id": 0`), "layer_list[0]: device_id 0 is given twice", Options{}},
		{ascend, device(`"device_count": 2`, `"device_count": 4`), "line 2, layer_list[0]: device_count says 4, device_list has 2", Options{}},
		{ascend, device(`[2, 0]`, `[2, -1]`), "device_expert[1]: -1; want a whole number in 0..", Options{}},
		{ascend, device(`[2, 0]`, `[2, 2]`), "layer 1: expert 0 of 3 has no slot on any rank", Options{}},
		{ascend, ascendMapText, "expert 2; the model has experts 0..1", Options{Experts: 2}},
		{ascend, ascendMapText, "2 layers; the model has 5 MoE layers", Options{Layers: 5}},
		{own, `{"tangram_load": 1, "windows": [[[1]]], "extra": 1}`, `field "extra" is unknown`, Options{}},
		{own, `{"tangram_load": 2, "windows": [[[1]]]}`, "tangram_load: 2; want a whole number in 1..1", Options{}},
		{own, `{"windows": [[[1]]]}`, `field "tangram_load" is missing`, Options{}},
		{own, `{"tangram_load": 1}`, `want one of the fields "windows" and "by_source"`, Options{}},
		{own, `{"tangram_load": 1, "windows": [[[1]]], "by_source": [[[[1]]]]}`, `want one of the fields`, Options{}},
		{own, `{"tangram_load": 1, "by_source": [[[[9007199254740992]], [[9007199254740992]]]]}`, "all sources: load is 1.8", Options{}},
		{table, "", "found columns \"\"; want", Options{}},
		{table, "window,layer,tokens\n", "line 1: found columns", Options{}},
		{table, "window,layer,expert,tokens\n", "no loads in it", Options{}},
		{table, "window,layer,expert,tokens\n0,0,0,1\n0,0,1,x\n", `line 3, column tokens: "x" is not a number`, Options{}},
		{table, "window,layer,expert,tokens\n0,0,0,1\n0,0,1,-1\n", "line 3, column tokens: load is -1", Options{}},
		{table, "window,layer,expert,tokens\n0,0,0,NaN\n", "line 2, column tokens: load is NaN", Options{}},
		{table, "window,layer,expert,tokens\n0,0,0,1e999\n", "line 2, column tokens: load is +Inf", Options{}},
		{table, "window,layer,expert,tokens\n0,-1,0,1\n", `line 2, column layer: "-1"`, Options{}},
		{table, "window,layer,expert,tokens\n0,0,0\n", "line 2: wrong number of fields", Options{}},
		{table, "window,layer,expert,tokens\n0,0,0,1\n0,0,0,2\n", "lines 2 and 3 are both for window 0, layer 0, expert 0", Options{}},
		{table, "window,layer,expert,tokens\n0,0,0,1\n0,1,1,2\n0,1,0,1\n", "no line for window 0, layer 0, expert 1", Options{}},
		{table, "window,layer,expert,tokens\n0,0,0,1\n0,0,1,1\n1,0,0,1\n", "no line for window 1, layer 0, expert 1", Options{}},
		{table, "window,layer,expert,tokens\n1048575,1048575,1048575,1\n", "no line for window 0, layer 0, expert 0", Options{}},
		{table, "window,source,layer,expert,tokens\n0,1,0,0,1\n", "no line for window 0, source 0, layer 0, expert 0", Options{}},
		{table, "window,layer,expert,tokens\n0,0,0,1\n", "loads of 1 experts per layer; the model has 2", Options{Experts: 2}},
		{table, "window,layer,expert,tokens\n0,0,0,1\n0,0,1,1\n", "more than 1 loads", Options{MaxValues: 1}},
		{table, "window,layer,expert,tokens\n0,0,0,1\n", "more than 30 bytes", Options{MaxBytes: 30}},
	} {
		err := c.read(strings.NewReader(c.text), c.o)
		require.ErrorContains(t, err, c.want, c.text)
	}
	for _, read := range []func(io.Reader, Options) error{vllm, sglang, ascend, own, table} {
		require.ErrorContains(t, read(iotest.ErrReader(fmt.Errorf("disk on fire")), Options{}), "disk on fire")
	}
}

// Random traces, with and without sources, survive a round trip through both of Tangram's formats, even with shuffled
// lines of the table.
func TestTangramFormatsRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	for range 100 {
		windows, sources, layers, experts := 1+random.IntN(3), random.IntN(3), 1+random.IntN(3), 1+random.IntN(4)
		tr := &Trace{}
		for range windows {
			sum := make([][]float64, layers)
			for l := range sum {
				sum[l] = make([]float64, experts)
			}
			var apart [][][]float64
			for range max(1, sources) {
				one := zeros(sum)
				for l := range one {
					for e := range one[l] {
						one[l][e] = float64(random.IntN(1000)) / 4
					}
				}
				addTo(sum, one)
				apart = append(apart, one)
			}
			tr.Windows = append(tr.Windows, sum)
			if sources > 0 {
				tr.Sources = append(tr.Sources, apart)
			}
		}
		var b bytes.Buffer
		require.NoError(t, tr.WriteJSON(&b))
		got, err := ReadJSON(&b, Options{Layers: layers, Experts: experts})
		require.NoError(t, err)
		require.Equal(t, tr, got)

		require.NoError(t, tr.WriteCSV(&b))
		lines := strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
		lines[len(lines)-1] += "\n"
		random.Shuffle(len(lines)-1, func(i, j int) { lines[i+1], lines[j+1] = lines[j+1], lines[i+1] })
		got, err = ReadCSV(strings.NewReader(strings.Join(lines, "")), Options{Layers: layers, Experts: experts})
		require.NoError(t, err)
		require.Equal(t, tr, got)
		every, err := got.Every(windows)
		require.NoError(t, err)
		require.Len(t, every.Windows, 1)
		require.Equal(t, sources > 0, len(every.Sources) == 1)
	}
}
