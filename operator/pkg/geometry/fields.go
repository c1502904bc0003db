package geometry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// mostNumber is the maximum value of a field.
const mostNumber = 1 << 24

// fields reads a JSON object. A null counts as missing, and two names of one fact must agree. The first error is kept,
// so a reader is a plain list of fields. Twin of agent/base/fields.h; the messages are the same.
type fields struct {
	object map[string]json.RawMessage
	prefix string // before each name in a message
	err    error
}

// fieldsOf parses an object; false: the text is not an object.
func fieldsOf(text []byte, prefix string) (*fields, bool) {
	f := &fields{prefix: prefix}
	return f, json.Unmarshal(text, &f.object) == nil && f.object != nil
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

func (f *fields) missing(name string) { f.fail("%s%s is missing", f.prefix, name) }

func (f *fields) refuse(name, wanted string) {
	f.fail("%s%s is %s, want %s", f.prefix, name, shown(f.object[name]), wanted)
}

// find returns the first of the names that has a value; "": none has. It rejects two names with different values.
func (f *fields) find(names ...string) string {
	found := ""
	for _, name := range names {
		value := f.object[name]
		switch {
		case len(value) == 0 || string(value) == "null":
		case found == "":
			found = name
		case compact(value) != compact(f.object[found]):
			f.fail("%s%s is %s and %s%s is %s: these are two names of one fact, remove one", f.prefix, found, shown(f.object[found]), f.prefix, name, shown(value))
		}
	}
	return found
}

// positive returns a number from 1 to most; 1 if the field is rejected or missing.
func (f *fields) positive(most uint32, names ...string) uint32 {
	name := f.find(names...)
	if name == "" {
		f.missing(names[0])
		return 1
	}
	return f.whole(name, 1, most)
}

// positiveOr returns `otherwise` if the field is missing.
func (f *fields) positiveOr(name string, otherwise uint32) uint32 {
	if f.find(name) == "" {
		return otherwise
	}
	return f.whole(name, 1, mostNumber)
}

// count returns a number from 0 to mostNumber; `otherwise` if the field is missing.
func (f *fields) count(name string, otherwise uint32) uint32 {
	if f.find(name) == "" {
		return otherwise
	}
	return f.whole(name, 0, mostNumber)
}

func (f *fields) whole(name string, least, most uint32) uint32 {
	if v, err := strconv.ParseUint(string(f.object[name]), 10, 64); err == nil && v >= uint64(least) && v <= uint64(most) {
		return uint32(v)
	}
	f.refuse(name, fmt.Sprintf("a whole number from %d to %d", least, most))
	return 1
}

func (f *fields) text(names ...string) string {
	name := f.find(names...)
	if name == "" {
		return ""
	}
	var out string
	if json.Unmarshal(f.object[name], &out) != nil {
		f.refuse(name, "a text")
	}
	return out
}

// inside returns the object of that name; nil if it is missing or rejected.
func (f *fields) inside(name string) *fields {
	if f.find(name) == "" {
		return nil
	}
	in, ok := fieldsOf(f.object[name], f.prefix+name+".")
	if !ok {
		f.refuse(name, "an object")
		return nil
	}
	return in
}

// layers returns the layer numbers in a list; false: the field is missing.
func (f *fields) layers(name string) (map[uint64]bool, bool) {
	if f.find(name) == "" {
		return nil, false
	}
	var list []json.RawMessage
	ok := json.Unmarshal(f.object[name], &list) == nil
	out := map[uint64]bool{}
	for _, layer := range list {
		v, err := strconv.ParseUint(string(layer), 10, 64)
		out[v], ok = true, ok && err == nil
	}
	if !ok {
		f.refuse(name, "a list of layer numbers")
	}
	return out, true
}

func compact(value json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return string(value)
	}
	return b.String()
}

// shown formats a value for a message: its first 64 bytes.
func shown(value json.RawMessage) string {
	text := compact(value)
	if len(text) <= 64 {
		return text
	}
	end := 64
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}
