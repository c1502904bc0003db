// Package kernels has measured times of the kernels of a Mixture-of-Experts decoder layer, and adds them up to the time
// of a step. Pure: the tables are embedded and opened by a function; no I/O, no clock, no mutable globals.
package kernels

import (
	"compress/gzip"
	"embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// What was measured, by whom, and under which licence: data/README.md.
//
//go:embed data/*.csv.gz
var files embed.FS

// Kernels of a table. The meaning of i, j, x and y of a row depends on the kernel.
const (
	opMoE        = "moe"           // i x j: tensor x expert ranks; x: tokens of all ranks
	opGeneration = "generation"    // i, j: query and KV heads of a rank; x: requests; y: tokens of context
	opContext    = "context"       // i, j: heads; x: 1 prompt; y: its tokens
	opGEMM       = "gemm"          // i, j: columns n and inner k; x: rows m
	opLowLatency = "deepep_ll"     // i: ranks; x: tokens of a rank; dispatch and combine together
	opNormal     = "deepep_normal" // the same with the kernels for many tokens
	opReduce     = "all_reduce"    // i: ranks; x: bytes
	opReduceNCCL = "all_reduce_nccl"
	opGather     = "all_gather"     // i: ranks; x: bytes
	opScatter    = "reduce_scatter" // i: ranks; x: bytes
)

type key struct {
	op, engine, routing string
	i, j                int
}

// Table of one model's kernels: microseconds by kernel, engine, routing and sizes.
type Table struct {
	model   string
	curves  map[key]curve
	surface map[key]map[int]curve // generation: by requests, over context
}

// Models returns the models with an embedded table, by the names that Open accepts.
func Models() []string {
	entries, err := files.ReadDir("data")
	if err != nil {
		return nil // cannot happen: the folder is embedded
	}
	var out []string
	for _, e := range entries {
		out = append(out, strings.TrimSuffix(e.Name(), ".csv.gz"))
	}
	return out
}

// Open the embedded table of a model, named as in geometries.csv in any case ("Qwen3-235B-A22B").
func Open(model string) (*Table, error) {
	name := strings.ToLower(model)
	f, err := files.Open("data/" + name + ".csv.gz")
	if err != nil {
		return nil, fmt.Errorf("kernels: no table for model %q; there are %s", model, strings.Join(Models(), ", "))
	}
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("kernels: %s: %w", name, err)
	}
	t, err := Read(unpacked)
	if err != nil {
		return nil, fmt.Errorf("kernels: %s: %w", name, err)
	}
	t.model = name
	return t, nil
}

// Read a table in CSV: op,engine,routing,i,j,x,y,microseconds. The error names the line.
func Read(r io.Reader) (*Table, error) {
	in := csv.NewReader(r)
	in.FieldsPerRecord = 8
	if _, err := in.Read(); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	t := &Table{model: "a table", curves: map[key]curve{}, surface: map[key]map[int]curve{}}
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := in.FieldPos(0)
		var n [4]int
		for c := range n {
			if n[c], err = strconv.Atoi(row[3+c]); err != nil || n[c] < 0 {
				return nil, fmt.Errorf("line %d: %q is no size", line, row[3+c])
			}
		}
		us, err := strconv.ParseFloat(row[7], 64)
		if err != nil || !(us > 0) || math.IsInf(us, 0) {
			return nil, fmt.Errorf("line %d: %q is no time in microseconds", line, row[7])
		}
		k := key{row[0], row[1], row[2], n[0], n[1]}
		switch k.op {
		case opGeneration:
			if t.surface[k] == nil {
				t.surface[k] = map[int]curve{}
			}
			t.surface[k][n[2]] = append(t.surface[k][n[2]], point{float64(n[3]), us})
		case opContext:
			t.curves[k] = append(t.curves[k], point{float64(n[3]), us})
		default:
			t.curves[k] = append(t.curves[k], point{float64(n[2]), us})
		}
	}
	for k, c := range t.curves {
		if err := c.ready(); err != nil {
			return nil, fmt.Errorf("%s: %w", k, err)
		}
	}
	for k, s := range t.surface {
		for requests, c := range s {
			if err := c.ready(); err != nil {
				return nil, fmt.Errorf("%s, %d requests: %w", k, requests, err)
			}
		}
	}
	return t, nil
}

func (k key) String() string {
	return strings.TrimRight(fmt.Sprintf("%s %dx%d %s %s", k.op, k.i, k.j, k.engine, k.routing), " ")
}

// Engines returns the engines whose MoE kernels were measured.
func (t *Table) Engines() []string { return t.distinct(func(k key) string { return k.engine }) }

// Routings returns the measured routings (skew of tokens over experts).
func (t *Table) Routings() []string { return t.distinct(func(k key) string { return k.routing }) }

func (t *Table) distinct(of func(key) string) []string {
	var out []string
	for k := range t.curves {
		if k.op == opMoE && !slices.Contains(out, of(k)) {
			out = append(out, of(k))
		}
	}
	slices.Sort(out)
	return out
}

// curve returns the curve of a kernel, or an error that lists the measured ones.
func (t *Table) curve(k key) (curve, error) {
	if c, ok := t.curves[k]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("kernels: %s: %s was not measured; measured were engines %s with routings %s", t.model, k, strings.Join(t.Engines(), ", "), strings.Join(t.Routings(), ", "))
}
