// Command mutants changes the operator's code in small ways, one at a time, and checks whether a test notices.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
)

// goal is the minimum share that must be killed or explained.
const goal = 0.95

// row is a line of the table.
type row struct {
	name                                          string
	all, killed, timedOut, explained, survivedAll int
}

func (r *row) add(o row) {
	r.all += o.all
	r.killed += o.killed
	r.timedOut += o.timedOut
	r.explained += o.explained
	r.survivedAll += o.survivedAll
}

func (r *row) good() int { return r.killed + r.timedOut + r.explained }

func (r *row) String() string {
	share := 100.0
	if r.all > 0 {
		share = 100 * float64(r.good()) / float64(r.all)
	}
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%.1f %%\t", r.name, r.all, r.killed, r.timedOut, r.explained, r.survivedAll, share)
}

type options struct {
	root, only string
	sample     int
	seed       uint64
	jobs       int
	tests      bool // print the changes that each test reaches
}

func main() {
	o := options{}
	flag.StringVar(&o.root, "root", "..", "the repository")
	flag.StringVar(&o.only, "only", "", "a regular expression: the packages, by name")
	flag.IntVar(&o.sample, "sample", 0, "so many mutants, drawn at random from those of all packages; 0: all")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the sample")
	flag.IntVar(&o.jobs, "jobs", runtime.NumCPU(), "mutants at a time")
	flag.BoolVar(&o.tests, "tests", false, "tell each test's seconds and how many mutants it reaches, and play nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	good, err := mutate(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if !good || err != nil {
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

// prepared is a suite whose mutants are compiled in.
type prepared struct {
	suite
	mutants, drawn []*mutant
	tests          []*test
}

func mutate(ctx context.Context, o options) (bool, error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return false, err
	}
	explained, err := readExplained(filepath.Join(root, "tests/mutants/explained.txt"))
	if err != nil {
		return false, err
	}
	chosen, err := regexp.Compile("^(" + o.only + ")$")
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var all []*prepared
	for _, s := range suites {
		if o.only == "" || chosen.MatchString(s.name) {
			p := &prepared{suite: s}
			folder := filepath.Join(dir, s.name)
			if err := os.Mkdir(folder, 0o700); err != nil {
				return false, err
			}
			if p.mutants, err = instrument(root, s, folder); err != nil {
				return false, fmt.Errorf("%s: %w", s.name, err)
			}
			p.drawn = p.mutants
			all = append(all, p)
		}
	}
	draw(all, o)
	table := []string{"package\tmutants\tkilled\ttimed out\texplained\tsurvived\tkilled or explained\t"}
	sum := row{name: "all"}
	var wrong []string
	for _, p := range all {
		results := map[*mutant]outcome{}
		if len(p.drawn) > 0 {
			if results, err = p.play(ctx, root, filepath.Join(dir, p.name), o); err != nil {
				return false, fmt.Errorf("%s: %w", p.name, err)
			}
		}
		r := row{name: p.name, all: len(p.drawn)}
		for _, m := range p.drawn {
			switch got := results[m]; {
			case got == killed:
				r.killed++
			case got == timedOut:
				r.timedOut++
			case explained[m.key()] != "":
				r.explained++
			default:
				r.survivedAll++
				how := "survived"
				if !slices.ContainsFunc(p.tests, func(t *test) bool { return t.reaches[m.id] }) {
					how = "not reached"
				}
				fmt.Printf("%s:%d: %s: %s: %s\n", m.file, m.line, how, m.within, m.change)
			}
		}
		wrong = append(wrong, stale(explained, p.suite, p.mutants, results)...)
		table = append(table, r.String())
		sum.add(r)
	}
	if o.tests {
		return true, nil
	}
	if len(all) > 1 {
		table = append(table, sum.String())
	}
	aligned := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	if _, err := fmt.Fprintln(aligned, strings.Join(table, "\n")); err != nil {
		return false, err
	}
	if err := aligned.Flush(); err != nil {
		return false, err
	}
	for key := range explained {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.has(key) }) {
			wrong = append(wrong, "of no package here: "+key)
		}
	}
	slices.Sort(wrong)
	for _, w := range wrong {
		fmt.Println("explained.txt:", w)
	}
	return len(wrong) == 0 && float64(sum.good()) >= goal*float64(sum.all), nil
}

// draw selects the sample.
func draw(all []*prepared, o options) {
	if o.sample == 0 {
		return
	}
	type one struct {
		p *prepared
		m *mutant
	}
	var every []one
	for _, p := range all {
		for _, m := range p.mutants {
			every = append(every, one{p, m})
		}
		p.drawn = nil
	}
	r := rand.New(rand.NewPCG(o.seed, 0))
	r.Shuffle(len(every), func(i, j int) { every[i], every[j] = every[j], every[i] })
	for _, e := range every[:min(o.sample, len(every))] {
		e.p.drawn = append(e.p.drawn, e.m)
	}
}

// play builds the tests, records the mutants that each reaches, and runs all mutants.
func (p *prepared) play(ctx context.Context, root, dir string, o options) (map[*mutant]outcome, error) {
	for _, guard := range p.guards {
		tests, err := program(root, guard, filepath.Join(dir, overlayFile), dir)
		if err != nil {
			return nil, err
		}
		p.tests = append(p.tests, tests...)
	}
	failed := make([]error, len(p.tests))
	side(len(p.tests), o.jobs, func(i int) { failed[i] = survey(ctx, p.tests[i], dir) })
	for i, err := range failed {
		if err != nil {
			return nil, err
		}
		if t := p.tests[i]; o.tests {
			fmt.Printf("%-12s %6.1f s %5d of %d mutants  %s\n", p.name, t.seconds, len(t.reaches), len(p.mutants), t.name)
		}
	}
	results := map[*mutant]outcome{}
	if o.tests {
		return results, nil
	}
	var mu sync.Mutex
	side(len(p.drawn), o.jobs, func(i int) {
		got := judge(ctx, p.tests, p.drawn[i])
		mu.Lock()
		defer mu.Unlock()
		results[p.drawn[i]] = got
		if n := len(results); n%50 == 0 {
			fmt.Fprintf(os.Stderr, "[mutants] %s: %d of %d\n", p.name, n, len(p.drawn))
		}
	})
	return results, ctx.Err()
}

// side runs n tasks, `jobs` concurrently.
func side(n, jobs int, do func(i int)) {
	var wait sync.WaitGroup
	next := make(chan int)
	for range jobs {
		wait.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wait.Wait()
}

// has reports whether a key of the list belongs to the suite.
func (s suite) has(key string) bool {
	file, _, _ := strings.Cut(key, " ")
	return filepath.Dir(file) == filepath.Join(module, s.folder) && (len(s.files) == 0 || slices.Contains(s.files, filepath.Base(file)))
}
