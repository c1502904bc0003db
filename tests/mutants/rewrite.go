package main

import (
	"go/ast"
	"slices"
	"strings"
)

// edit replaces the bytes from at to until by text. If several are at one byte, ends come before beginnings, inner ends
// before outer ones and outer beginnings before inner ones.
type edit struct {
	at, until int
	text      string
	ends      bool
}

func (f *finder) wrap(n ast.Node, before, after string) {
	from, to := f.offset(n.Pos()), f.offset(n.End())
	f.edits = append(f.edits, edit{at: from, until: from, text: before}, edit{at: to, until: to, text: after, ends: true})
}

// rewrite applies edits in the order of a walk: outer nodes before inner ones. Lines keep their numbers.
func rewrite(source []byte, edits []edit) string {
	type placed struct {
		edit
		order int
	}
	all := make([]placed, len(edits))
	for i, e := range edits {
		all[i] = placed{e, i}
		if e.ends {
			all[i].order = -i
		}
	}
	slices.SortFunc(all, func(a, b placed) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.ends != b.ends:
			if a.ends {
				return -1
			}
			return 1
		}
		return a.order - b.order
	})
	var out strings.Builder
	done := 0
	for _, e := range all {
		out.Write(source[done:e.at])
		out.WriteString(e.text)
		done = e.until
	}
	out.Write(source[done:])
	return out.String()
}
