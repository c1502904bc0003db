package main

import (
	"fmt"
	"os"
	"strings"
)

// readExplained returns the explained survivors: key -> reason. A line is `file function: was -> is :: reason`.
func readExplained(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, reason, ok := strings.Cut(line, " :: ")
		if !ok || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s: no reason in %q", path, line)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("%s: twice: %s", path, key)
		}
		out[key] = reason
	}
	return out, nil
}

// stale lists a suite's entries that explain nothing: the mutant does not exist, or a test kills it.
func stale(explained map[string]string, s suite, mutants []*mutant, results map[*mutant]outcome) []string {
	byKey := map[string]*mutant{}
	for _, m := range mutants {
		byKey[m.key()] = m
	}
	var out []string
	for key := range explained {
		if !s.has(key) {
			continue
		}
		m := byKey[key]
		if m == nil {
			out = append(out, "no such mutant: "+key)
		} else if got, played := results[m]; played && got == killed {
			out = append(out, "killed, so not to be explained: "+key)
		}
	}
	return out
}
