package controller

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Lengths of what people read, in bytes.
const (
	longestMessage = 1024 // of conditions and events, as the API server takes them of events; of conditions it would take 32768
	longestWords   = 300  // of one part of a message: a container's last words, a loss
)

// clip a text to one line of at most n bytes, as a condition, an event or a line of a list shows it: lines are joined by
// "; ", what cannot be printed becomes a space.
func clip(text string, n int) string {
	var lines []string
	for l := range strings.Lines(strings.ToValidUTF8(text, "?")) {
		printable := strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) {
				return r
			}
			return ' '
		}, l)
		if l = strings.TrimSpace(printable); l != "" {
			lines = append(lines, l)
		}
	}
	line := strings.Join(lines, "; ")
	if len(line) <= n {
		return line
	}
	end := n - len("...")
	for end > 0 && !utf8.RuneStart(line[end]) {
		end--
	}
	return line[:end] + "..."
}

// lastWords of a container: the last line of its log or termination message, which is where a program says why it ends.
func lastWords(message string) string {
	message = strings.TrimSpace(message)
	return clip(message[strings.LastIndexByte(message, '\n')+1:], longestWords)
}
