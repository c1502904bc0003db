package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// jsonReader walks JSON token by token. encoding/json alone accepts the last of two equal keys, loses positions, and
// expands a large file into a tree many times its size.
type jsonReader struct {
	format string // for errors
	data   []byte
	dec    *json.Decoder
	path   []step // to the value being read
	values int    // remaining limit of numbers
}

// step of a path: a field, or an element if it has no name. Converted to a string only for an error: a large file has
// one step per number.
type step struct {
	name  string
	index int
}

// mostDepth limits the depth of skipped values.
const mostDepth = 64

func newJSONReader(format string, r io.Reader, o Options) (*jsonReader, error) {
	data, err := o.read(format, r)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return &jsonReader{format: format, data: data, dec: dec, values: o.values()}, nil
}

// fail returns an error with format, line and path.
func (j *jsonReader) fail(format string, args ...any) error {
	line := 1 + bytes.Count(j.data[:min(int(j.dec.InputOffset()), len(j.data))], []byte{'\n'})
	where := ""
	for _, s := range j.path {
		if s.name == "" {
			where += "[" + strconv.Itoa(s.index) + "]"
		} else {
			where += "." + s.name
		}
	}
	if where = strings.TrimPrefix(where, "."); where == "" {
		where = "the top"
	}
	return fmt.Errorf("%s: line %d, %s: %w", j.format, line, where, fmt.Errorf(format, args...))
}

func (j *jsonReader) token() (json.Token, error) {
	token, err := j.dec.Token()
	if err == nil {
		return token, nil
	}
	rest := bytes.TrimLeft(j.data[min(int(j.dec.InputOffset()), len(j.data)):], " \t\r\n,:[")
	for _, bad := range []string{"NaN", "Infinity", "-Infinity"} { // as Python writes them
		if bytes.HasPrefix(rest, []byte(bad)) {
			return nil, j.fail("the value is %s; want a finite number", bad)
		}
	}
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, j.fail("the file ends here; it was cut off or not written to its end")
	case errors.As(err, &syntax):
		return nil, j.fail("not JSON: %v", syntax)
	}
	return nil, j.fail("%w", err)
}

// is reports whether the token is this delimiter.
func is(token json.Token, delim rune) bool {
	d, ok := token.(json.Delim)
	return ok && rune(d) == delim
}

func kind(token json.Token) string {
	switch t := token.(type) {
	case nil:
		return "null"
	case json.Delim:
		if t == '{' {
			return "an object"
		}
		return "a list"
	case string:
		return "a string"
	case bool:
		return "true or false"
	default:
		return "a number"
	}
}

// object calls the reader of each field. Unknown fields are skipped if open, otherwise rejected. It rejects a duplicate
// field and a missing required one.
func (j *jsonReader) object(open bool, fields map[string]func() error, required ...string) error {
	token, err := j.token()
	if err != nil {
		return err
	}
	if !is(token, '{') {
		return j.fail("%s; want an object", kind(token))
	}
	return j.fieldsOf(open, fields, required)
}

func (j *jsonReader) fieldsOf(open bool, fields map[string]func() error, required []string) error {
	seen := map[string]bool{}
	for j.dec.More() {
		token, err := j.token()
		if err != nil {
			return err
		}
		name, _ := token.(string) // the decoder allows only strings as keys
		if seen[name] {
			return j.fail("field %q is given twice", name)
		}
		seen[name] = true
		read := fields[name]
		if read == nil {
			if !open {
				return j.fail("field %q is unknown", name)
			}
			read = func() error { return j.skip(mostDepth) }
		}
		if err := j.in(step{name: name}, read); err != nil {
			return err
		}
	}
	if _, err := j.token(); err != nil { // '}'
		return err
	}
	for _, name := range required {
		if !seen[name] {
			return j.fail("field %q is missing", name)
		}
	}
	return nil
}

// in reads a value below the current one.
func (j *jsonReader) in(s step, read func() error) error {
	j.path = append(j.path, s)
	if err := read(); err != nil {
		return err
	}
	j.path = j.path[:len(j.path)-1]
	return nil
}

// list calls read for each element.
func (j *jsonReader) list(read func(i int) error) (int, error) {
	token, err := j.token()
	if err != nil {
		return 0, err
	}
	if !is(token, '[') {
		return 0, j.fail("%s; want a list", kind(token))
	}
	n := 0
	for j.dec.More() {
		if err := j.in(step{index: n}, func() error { return read(n) }); err != nil {
			return 0, err
		}
		n++
	}
	_, err = j.token() // ']'
	return n, err
}

// skip an unused value; it rejects duplicate fields there too.
func (j *jsonReader) skip(depth int) error {
	if depth == 0 {
		return j.fail("more than %d levels deep", mostDepth)
	}
	token, err := j.token()
	if err != nil {
		return err
	}
	switch {
	case is(token, '['):
		for j.dec.More() {
			if err := j.skip(depth - 1); err != nil {
				return err
			}
		}
		_, err = j.token()
	case is(token, '{'):
		seen := map[string]bool{}
		for j.dec.More() {
			key, err := j.token()
			if err != nil {
				return err
			}
			name, _ := key.(string)
			if seen[name] {
				return j.fail("field %q is given twice", name)
			}
			seen[name] = true
			if err := j.skip(depth - 1); err != nil {
				return err
			}
		}
		_, err = j.token()
	}
	return err
}

// end checks the end of the file.
func (j *jsonReader) end() error {
	if token, err := j.dec.Token(); !errors.Is(err, io.EOF) {
		if err != nil {
			return j.fail("after the end of the JSON value: %w", err)
		}
		return j.fail("after the end of the JSON value comes %s; want one value in a file", kind(token))
	}
	return nil
}

// integer of low..high.
func (j *jsonReader) integer(low, high int) (int, error) {
	token, err := j.token()
	if err != nil {
		return 0, err
	}
	number, ok := token.(json.Number)
	if !ok {
		return 0, j.fail("%s; want a whole number", kind(token))
	}
	v, err := strconv.Atoi(number.String())
	if err != nil {
		f, ferr := number.Float64()
		if ferr != nil || f != math.Trunc(f) || f < math.MinInt32 || f > math.MaxInt32 {
			return 0, j.fail("%s; want a whole number in %d..%d", number, low, high)
		}
		v = int(f) // 3.0, as NumPy writes it
	}
	if v < low || v > high {
		return 0, j.fail("%d; want a whole number in %d..%d", v, low, high)
	}
	return v, nil
}

// tensor reads loads, row-major. It has as many dimensions as there are names, or fewer, at least `fewest`; names are
// of the last ones. Ragged rows, holes (null) and invalid loads are rejected with their position.
func (j *jsonReader) tensor(fewest int, names ...string) (flat []float64, shape []int, err error) {
	shape, err = j.subtensor(&flat, names, len(names))
	if err != nil {
		return nil, nil, err
	}
	if len(shape) < fewest {
		return nil, nil, j.fail("a list of %d dimensions; want %s", len(shape), strings.Join(names[len(names)-fewest:], " by "))
	}
	return flat, shape, nil
}

func (j *jsonReader) subtensor(flat *[]float64, names []string, depth int) ([]int, error) {
	token, err := j.token()
	if err != nil {
		return nil, err
	}
	if number, ok := token.(json.Number); ok {
		if depth == len(names) {
			return nil, j.fail("a number; want a list of %s", strings.Join(names, " by "))
		}
		if j.values == 0 {
			return nil, j.fail("more loads than the limit; raise it, or record fewer windows")
		}
		j.values--
		v, err := number.Float64()
		if err != nil && !math.IsInf(v, 0) {
			return nil, j.fail("%w", err)
		}
		if err := checkLoad(v); err != nil {
			return nil, j.fail("%w", err)
		}
		*flat = append(*flat, v)
		return nil, nil
	}
	if !is(token, '[') {
		return nil, j.fail("a hole: %s; want a number of tokens", kind(token))
	}
	if depth == 0 {
		return nil, j.fail("a list more than %d deep; want %s", len(names), strings.Join(names, " by "))
	}
	n := 0
	var inner []int
	for j.dec.More() {
		err := j.in(step{index: n}, func() error {
			shape, err := j.subtensor(flat, names, depth-1)
			if err != nil {
				return err
			}
			if n > 0 && !slices.Equal(shape, inner) {
				return j.fail("ragged: its shape is %v, that of those before it %v", shape, inner)
			}
			inner = shape
			return nil
		})
		if err != nil {
			return nil, err
		}
		n++
	}
	if _, err := j.token(); err != nil { // ']'
		return nil, err
	}
	if n == 0 {
		return nil, j.fail("an empty list; want %s", strings.Join(names, " by "))
	}
	return append([]int{n}, inner...), nil
}

// grid splits a flat [layers][experts].
func grid(flat []float64, layers, experts int) [][]float64 {
	out := make([][]float64, layers)
	for l := range out {
		out[l] = flat[l*experts : (l+1)*experts : (l+1)*experts]
	}
	return out
}
