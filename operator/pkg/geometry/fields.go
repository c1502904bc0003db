package geometry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// mostNumber is the most that a field may say.
const mostNumber = 1 << 24

// fields reads an object of JSON. A null is as if it were not there, two names of one fact must agree, and the first error stays,
// so that a reader is a list of fields. Twin of agent/base/fields.h; the messages are the same.
type fields struct {
	object map[string]json.RawMessage
	prefix string // before each name in a message
	err    error
}

// fieldsOf the object; false if it is none.
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

// find the first of the names that has a value; "": none has. Refuses two names with two values.
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

// positive is 1 to most; 1 where that is refused or missing.
func (f *fields) positive(most uint32, names ...string) uint32 {
	name := f.find(names...)
	if name == "" {
		f.missing(names[0])
		return 1
	}
	return f.whole(name, 1, most)
}

// positiveOr is `otherwise` where the field is missing.
func (f *fields) positiveOr(name string, otherwise uint32) uint32 {
	if f.find(name) == "" {
		return otherwise
	}
	return f.whole(name, 1, mostNumber)
}

// count is 0 to mostNumber, `otherwise` where the field is missing.
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

// inside is the object of that name; nil where it is missing or refused.
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

// layers are numbers of layers; false: the field is missing.
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

// shown is a value in a message: its first 64 bytes.
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
