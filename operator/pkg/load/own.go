package load

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// jsonVersion of Tangram's JSON format.
const jsonVersion = 1

// ReadJSON reads Tangram's format: {"tangram_load": 1, "windows": [windows][layers][experts]}, or "by_source":
// [windows][source ranks][layers][experts] instead of "windows". It rejects unknown fields.
func ReadJSON(r io.Reader, o Options) (*Trace, error) {
	j, err := newJSONReader("load JSON", r, o)
	if err != nil {
		return nil, err
	}
	t := &Trace{}
	var windows, bySource bool
	err = j.object(false, map[string]func() error{
		"tangram_load": func() error { _, err := j.integer(jsonVersion, jsonVersion); return err },
		"windows": func() error {
			windows = true
			flat, shape, err := j.tensor(3, "windows", "layers", "experts")
			if err != nil {
				return err
			}
			for len(flat) > 0 && !bySource {
				if err := j.window(t, o, flat[:shape[1]*shape[2]], shape[1], shape[2]); err != nil {
					return err
				}
				flat = flat[shape[1]*shape[2]:]
			}
			return nil
		},
		"by_source": func() error {
			bySource = true
			flat, shape, err := j.tensor(4, "windows", "source ranks", "layers", "experts")
			if err != nil || windows {
				return err
			}
			return t.fromSources(flat, shape, func(sum []float64, layers, experts int) error { return j.window(t, o, sum, layers, experts) })
		},
	}, "tangram_load")
	if err != nil {
		return nil, err
	}
	if windows == bySource {
		return nil, j.fail("want one of the fields \"windows\" and \"by_source\", not both and not none")
	}
	return j.done(t)
}

// fromSources fills the trace from loads by [window][source][layer][expert].
func (t *Trace) fromSources(flat []float64, shape []int, window func(sum []float64, layers, experts int) error) error {
	sources, layers, experts := shape[1], shape[2], shape[3]
	for len(flat) > 0 {
		sum := make([]float64, layers*experts)
		apart := make([][][]float64, sources)
		for s := range apart {
			apart[s] = grid(flat[s*len(sum):(s+1)*len(sum)], layers, experts)
			for i, v := range flat[s*len(sum) : (s+1)*len(sum)] {
				sum[i] += v
				if err := checkLoad(sum[i]); err != nil {
					return fmt.Errorf("load: window %d, layer %d, expert %d, all sources: %w", len(t.Windows), i/experts, i%experts, err)
				}
			}
		}
		if err := window(sum, layers, experts); err != nil {
			return err
		}
		t.Sources = append(t.Sources, apart)
		flat = flat[sources*len(sum):]
	}
	return nil
}

// WriteJSON writes the format of ReadJSON.
func (t *Trace) WriteJSON(w io.Writer) error {
	form := map[string]any{"tangram_load": jsonVersion}
	if t.Sources != nil {
		form["by_source"] = t.Sources
	} else {
		form["windows"] = t.Windows
	}
	if err := json.NewEncoder(w).Encode(form); err != nil {
		return fmt.Errorf("load JSON: %w", err)
	}
	return nil
}

var (
	plainColumns  = []string{"window", "layer", "expert", "tokens"}
	sourceColumns = []string{"window", "source", "layer", "expert", "tokens"}
)

// ReadCSV reads Tangram's table: a header of window,layer,expert,tokens or window,source,layer,expert,tokens, and one
// line for each, in any order. A missing line is an error: a load of 0 must be explicit.
func ReadCSV(r io.Reader, o Options) (*Trace, error) {
	const format = "load CSV"
	limit := o.MaxBytes
	if limit <= 0 {
		limit = defaultBytes
	}
	bounded := &io.LimitedReader{R: r, N: limit + 1}
	table := csv.NewReader(bounded)
	table.ReuseRecord = true
	header, err := table.Read()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", format, err)
	}
	columns := slices.Clone(header)
	if !slices.Equal(columns, plainColumns) && !slices.Equal(columns, sourceColumns) {
		return nil, fmt.Errorf("%s: line 1: found columns %q; want %q or %q", format, strings.Join(columns, ","), strings.Join(plainColumns, ","), strings.Join(sourceColumns, ","))
	}
	var lines []csvLine
	for {
		record, err := table.Read()
		if bounded.N <= 0 {
			return nil, fmt.Errorf("%s: more than %d bytes; raise the limit, or record fewer windows", format, limit)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", format, err) // names line and column
		}
		if len(lines) == o.values() {
			return nil, fmt.Errorf("%s: more than %d loads; raise the limit, or record fewer windows", format, len(lines))
		}
		l, err := parseLine(columns, record)
		if l.number, _ = table.FieldPos(0); err != nil {
			return nil, fmt.Errorf("%s: line %d, %w", format, l.number, err)
		}
		lines = append(lines, l)
	}
	shape, flat, err := dense(lines, columns)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", format, err)
	}
	if err := o.shape(shape[2], shape[3]); err != nil {
		return nil, fmt.Errorf("%s: %w", format, err)
	}
	t := &Trace{}
	err = t.fromSources(flat, shape[:], func(sum []float64, layers, experts int) error {
		t.Windows = append(t.Windows, grid(sum, layers, experts))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", format, err)
	}
	if len(columns) == len(plainColumns) {
		t.Sources = nil
	}
	return t, nil
}

// csvLine at (window, source, layer, expert).
type csvLine struct {
	at     [4]int
	tokens float64
	number int // of the line
}

func parseLine(columns, record []string) (csvLine, error) {
	var l csvLine
	place := 0
	for i, text := range record {
		name := columns[i]
		if name == "tokens" {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil && !errors.Is(err, strconv.ErrRange) {
				return l, fmt.Errorf("column tokens: %q is not a number", text)
			}
			if err := checkLoad(v); err != nil {
				return l, fmt.Errorf("column tokens: %w", err)
			}
			l.tokens = v
			continue
		}
		v, err := strconv.Atoi(text)
		if err != nil || v < 0 || v >= mostIndex {
			return l, fmt.Errorf("column %s: %q; want a whole number in 0..%d", name, text, mostIndex-1)
		}
		l.at[place] = v
		if place++; name == "window" && len(columns) == len(plainColumns) {
			place++ // no column for the source
		}
	}
	return l, nil
}

// dense sorts the lines and finds the first hole or duplicate line. The lines declare the sizes, so it allocates
// nothing by them before it has found all lines.
func dense(lines []csvLine, columns []string) (shape [4]int, flat []float64, err error) {
	if len(lines) == 0 {
		return shape, nil, errors.New("no loads in it")
	}
	for _, l := range lines {
		for i, v := range l.at {
			shape[i] = max(shape[i], v+1)
		}
	}
	slices.SortStableFunc(lines, func(a, b csvLine) int { return slices.Compare(a.at[:], b.at[:]) })
	name := func(at [4]int) string {
		if len(columns) == len(plainColumns) {
			return fmt.Sprintf("window %d, layer %d, expert %d", at[0], at[2], at[3])
		}
		return fmt.Sprintf("window %d, source %d, layer %d, expert %d", at[0], at[1], at[2], at[3])
	}
	var want [4]int
	for i, l := range lines {
		if i > 0 && l.at == lines[i-1].at {
			return shape, nil, fmt.Errorf("lines %d and %d are both for %s", lines[i-1].number, l.number, name(l.at))
		}
		if l.at != want {
			return shape, nil, fmt.Errorf("no line for %s, though the table goes to %s; a load of 0 must be said", name(want), name(last(shape)))
		}
		flat = append(flat, l.tokens)
		for d := 3; d >= 0; d-- {
			if want[d]++; want[d] < shape[d] || d == 0 {
				break
			}
			want[d] = 0
		}
	}
	if want != [4]int{shape[0], 0, 0, 0} {
		return shape, nil, fmt.Errorf("no line for %s, though the table goes to %s; a load of 0 must be said", name(want), name(last(shape)))
	}
	return shape, flat, nil
}

func last(shape [4]int) [4]int {
	for i := range shape {
		shape[i]--
	}
	return shape
}

// WriteCSV writes the format of ReadCSV.
func (t *Trace) WriteCSV(w io.Writer) error {
	table := csv.NewWriter(w)
	columns, windows := sourceColumns, t.Sources
	if t.Sources == nil {
		columns = plainColumns
		for _, one := range t.Windows {
			windows = append(windows, [][][]float64{one})
		}
	}
	if err := table.Write(columns); err != nil {
		return fmt.Errorf("load CSV: %w", err)
	}
	for i, sources := range windows {
		for s, layers := range sources {
			for l, experts := range layers {
				for e, v := range experts {
					record := []string{strconv.Itoa(i), strconv.Itoa(s), strconv.Itoa(l), strconv.Itoa(e), strconv.FormatFloat(v, 'g', -1, 64)}
					if t.Sources == nil {
						record = slices.Delete(record, 1, 2)
					}
					if err := table.Write(record); err != nil {
						return fmt.Errorf("load CSV: %w", err)
					}
				}
			}
		}
	}
	table.Flush()
	if err := table.Error(); err != nil {
		return fmt.Errorf("load CSV: %w", err)
	}
	return nil
}
