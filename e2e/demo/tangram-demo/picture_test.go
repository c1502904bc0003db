package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The small report in testdata is handwritten, in the format of a run's.
const smallReport = "testdata/report.json"

// elements counts an SVG file's elements by name, and returns its texts; the file must be well-formed.
func elements(t *testing.T, svg string) (counts map[string]int, texts []string) {
	t.Helper()
	counts = map[string]int{}
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return counts, texts
		}
		require.NoError(t, err)
		switch x := token.(type) {
		case xml.StartElement:
			counts[x.Name.Local]++
		case xml.CharData:
			texts = append(texts, string(x))
		}
	}
}

func TestPicture_WhenReportIsComplete(t *testing.T) {
	out := filepath.Join(t.TempDir(), "transitions.svg")
	require.NoError(t, picture(smallReport, out))
	svg, err := os.ReadFile(out)
	require.NoError(t, err)
	require.NotContains(t, string(svg), "NaN")
	counts, texts := elements(t, string(svg))
	require.Equal(t, 1, counts["svg"])
	require.Equal(t, 1+4+4*8+4*8, counts["rect"], "the background, four transitions, whole experts in four stages, and four shards of each in one")
	require.Greater(t, counts["circle"], 80)
	for _, want := range []string{"2 -> 4 ranks", "EP -> TP", "TP -> EP", "4 -> 2 ranks", "EP, 2 ranks", "EP, 4 ranks", "TP, 4 ranks", "36.7 MB", "rank 0", "rank 3", "longest gap 413 ms"} {
		require.Contains(t, texts, want)
	}
	require.NotContains(t, texts, "rank 4")
	require.NotContains(t, texts, "end of the stream")
}

func TestPicture_WhenReportLacksData(t *testing.T) {
	small := func() *report {
		wire, err := os.ReadFile(smallReport)
		require.NoError(t, err)
		r := &report{}
		require.NoError(t, json.Unmarshal(wire, r))
		return r
	}
	r := small()
	r.Stream.Tokens = r.Stream.Tokens[:60]
	svg, err := drawTransitions(r)
	require.NoError(t, err)
	_, texts := elements(t, svg)
	require.Contains(t, texts, "end of the stream")

	r = small()
	r.Transitions[2].Placement = nil
	_, err = drawTransitions(r)
	require.ErrorContains(t, err, `transition "TP -> EP" has no placement`)
	r.Stream.Started = r.Stream.Started.Add(time.Hour)
	_, err = drawTransitions(r)
	require.ErrorContains(t, err, "ended before the long stream began")
	r.Stream = nil
	_, err = drawTransitions(r)
	require.ErrorContains(t, err, "no long stream")
	require.ErrorContains(t, picture("testdata/none.json", "x.svg"), "none.json")
}

func TestNiceTick(t *testing.T) {
	for least, want := range map[float64]float64{.9: 1, 1: 1, 1.1: 2, 3: 5, 34: 50, 60: 100, .03: .05} {
		require.InDelta(t, want, niceTick(least), 1e-9)
	}
}
