package plancli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// object is an object of a manifest: a document, or an item of a List.
type object struct {
	node                              *yaml.Node
	apiVersion, kind, namespace, name string
}

// called names the object in messages.
func (o object) called() string {
	name := o.name
	if o.namespace != "" {
		name = o.namespace + "/" + name
	}
	if name == "" {
		name = "without a name"
	}
	return fmt.Sprintf("%s (line %d)", name, o.node.Line)
}

// objects returns the objects of all YAML or JSON documents of a text, including the items of Lists.
func objects(text []byte) ([]object, error) {
	var out []object
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, brokenYAML(err)
		}
		if len(document.Content) != 1 || document.Content[0].Tag == "!!null" {
			continue // a document of comments
		}
		if out, err = appendObjects(out, document.Content[0]); err != nil {
			return nil, err
		}
	}
}

func appendObjects(out []object, n *yaml.Node) ([]object, error) {
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: found %s; want an object with apiVersion and kind", n.Line, describe(n))
	}
	if err := checkKeys(n); err != nil {
		return nil, err
	}
	o := object{node: n, apiVersion: scalar(n, "apiVersion"), kind: scalar(n, "kind"), namespace: scalar(n, "metadata", "namespace"), name: scalar(n, "metadata", "name")}
	items := child(n, "items")
	if items == nil || !strings.HasSuffix(o.kind, "List") {
		return append(out, o), nil
	}
	if items.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: items of %s: found %s; want a list of objects", items.Line, o.kind, describe(items))
	}
	var err error
	for _, item := range items.Content {
		if out, err = appendObjects(out, item); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// checkKeys rejects duplicate keys in the mappings of a node. Aliases are checked at their anchors.
func checkKeys(n *yaml.Node) error {
	if n.Kind == yaml.MappingNode {
		lines := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if first := lines[key.Value]; first != 0 {
				return fmt.Errorf("line %d: duplicate key %s, first used in line %d", key.Line, key.Value, first)
			}
			lines[key.Value] = key.Line
		}
	}
	for _, c := range n.Content {
		if err := checkKeys(c); err != nil {
			return err
		}
	}
	return nil
}

var lineOfYAML = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// brokenYAML reformats the parser's error, without the parser's name.
func brokenYAML(err error) error {
	text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "yaml: "), "\n")
	if m := lineOfYAML.FindStringSubmatch(text); m[1] != "" {
		return fmt.Errorf("line %s: invalid YAML: %s", m[1], m[2])
	}
	return fmt.Errorf("invalid YAML: %s", text)
}

// child returns the value of a key of a mapping; nil: none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func scalar(n *yaml.Node, path ...string) string {
	for _, key := range path {
		n = child(n, key)
	}
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

var step = regexp.MustCompile(`[^.\[\]]+`)

// at returns the node at a path like spec.parallelism.layers[0].expertGroup, or the last existing node on it.
func at(n *yaml.Node, path string) *yaml.Node {
	for _, key := range step.FindAllString(path, -1) {
		next := child(n, key)
		if n.Kind == yaml.SequenceNode {
			var i int
			if _, err := fmt.Sscan(key, &i); err == nil && i >= 0 && i < len(n.Content) {
				next = n.Content[i]
			}
		}
		if next == nil {
			return n
		}
		n = next
	}
	return n
}

// describe describes a node in a few words.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		kind := map[string]string{"!!int": "the number ", "!!float": "the number ", "!!bool": "the boolean ", "!!null": "null"}[n.Tag]
		if n.Tag == "!!null" {
			return kind
		}
		if kind == "" {
			return fmt.Sprintf("the string %q", n.Value)
		}
		return kind + n.Value
	}
	return "something else"
}

// kinds lists the kinds of objects, each once, in order.
func kinds(objects []object) string {
	var out []string
	for _, o := range objects {
		text := "an object without a kind"
		if o.kind != "" {
			text = strings.TrimSpace(o.kind + " of " + o.apiVersion)
		}
		if o.kind != "" && o.apiVersion == "" {
			text = o.kind + " without an apiVersion"
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	if len(out) == 0 {
		return "no object"
	}
	return strings.Join(out, ", ")
}
