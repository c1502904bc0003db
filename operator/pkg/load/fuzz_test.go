package load

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// A loader accepts only complete input. Memory and time for untrusted bytes are bounded by their size, and nothing
// panics.
var fuzzOptions = Options{MaxBytes: 1 << 16, MaxValues: 1 << 12}

func sound(t *testing.T, tr *Trace, err error) {
	t.Helper()
	if err != nil {
		if tr != nil {
			t.Fatal("a trace beside an error")
		}
		return
	}
	if len(tr.Windows) == 0 {
		t.Fatal("no windows and no error")
	}
	for i, w := range tr.Windows {
		if err := Check(w); err != nil || len(w) != len(tr.Windows[0]) || len(w[0]) != len(tr.Windows[0][0]) {
			t.Fatalf("window %d: %v", i, err)
		}
	}
}

func soundPlacement(t *testing.T, p Placement, err error) {
	t.Helper()
	if err != nil {
		return
	}
	experts := int32(0)
	for _, rank := range p[0] {
		for _, e := range rank {
			experts = max(experts, e+1)
		}
	}
	loads := make([][]float64, len(p))
	for l := range loads {
		loads[l] = make([]float64, experts)
		for e := range loads[l] {
			loads[l][e] = 1
		}
	}
	// Rejects an expert without a slot, and one outside the model.
	if _, err := Balancedness(loads, p); err != nil {
		t.Fatal(err)
	}
}

func FuzzVLLM(f *testing.F) {
	f.Add([]byte(`{"load_history": [{"logical_expert_load": [[1, 2], [3, 4]]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := ReadVLLM(bytes.NewReader(data), fuzzOptions)
		sound(t, tr, err)
	})
}

func FuzzSGLang(f *testing.F) {
	f.Add([]byte(`{"logical_count": [[[1, 2], [3, 4]]], "physical_to_logical_map": [[0, 1], [1, 0]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := ReadSGLang(bytes.NewReader(data), fuzzOptions)
		sound(t, tr, err)
		p, err := ReadSGLangMap(bytes.NewReader(data), 2, fuzzOptions)
		soundPlacement(t, p, err)
	})
}

func FuzzAscendMap(f *testing.F) {
	f.Add([]byte(ascendMapText))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadAscendMap(bytes.NewReader(data), fuzzOptions)
		soundPlacement(t, p, err)
	})
}

func FuzzAscendMetrics(f *testing.F) {
	f.Add([]byte(ascendMetrics))
	f.Add(bytes.Replace([]byte(ascendMetrics), []byte("%d"), []byte("10"), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ReadAscendMetrics(bytes.NewReader(data), fuzzOptions)
		if err != nil {
			return
		}
		soundPlacement(t, a.Placement, nil)
		loads, err := a.Since(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(loads); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzOwnJSON(f *testing.F) {
	f.Add([]byte(`{"tangram_load": 1, "windows": [[[1, 2], [3, 4]]]}`))
	f.Add([]byte(`{"tangram_load": 1, "by_source": [[[[1, 2]], [[3, 4]]]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := ReadJSON(bytes.NewReader(data), fuzzOptions)
		sound(t, tr, err)
		if err == nil {
			again(t, tr)
		}
	})
}

func FuzzOwnCSV(f *testing.F) {
	f.Add([]byte("window,layer,expert,tokens\n0,0,0,1\n0,0,1,2\n"))
	f.Add([]byte("window,source,layer,expert,tokens\n0,0,0,0,1\n0,1,0,0,2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := ReadCSV(bytes.NewReader(data), fuzzOptions)
		sound(t, tr, err)
		if err == nil {
			again(t, tr)
		}
	})
}

// again: a trace that was read survives a round trip through both of Tangram's formats.
func again(t *testing.T, tr *Trace) {
	t.Helper()
	var b bytes.Buffer
	if err := tr.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadJSON(&b, Options{}); err != nil || !reflect.DeepEqual(got, tr) {
		t.Fatalf("JSON: %v", err)
	}
	b.Reset()
	if err := tr.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadCSV(&b, Options{}); err != nil || !reflect.DeepEqual(got, tr) {
		t.Fatalf("CSV: %v", err)
	}
}

// Steps of DeepSeek-V3's shape as in vLLM's recordings, 58 layers of 256 experts.
func BenchmarkReadVLLM(b *testing.B) {
	row := "[" + strings.Repeat("123, ", 255) + "7]"
	one := `{"logical_expert_load": [` + strings.Repeat(row+",", 57) + row + "]}"
	text := `{"load_history": [` + strings.Repeat(one+",", 15) + one + "]}"
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := ReadVLLM(strings.NewReader(text), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzPlacement(f *testing.F) {
	f.Add([]byte(`[[[0, 1], [2, 0]], [[1], [0, 2]]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		lists, err := ReadPlacementLists(bytes.NewReader(data), fuzzOptions)
		for l := range lists {
			if err == nil && (len(lists[l]) == 0 || len(lists[l]) != len(lists[0])) {
				t.Fatalf("layer %d is on %d ranks", l, len(lists[l]))
			}
		}
		p, err := ReadPlacement(bytes.NewReader(data), fuzzOptions)
		soundPlacement(t, p, err)
	})
}
