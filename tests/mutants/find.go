package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// mutant is one small change of the code.
type mutant struct {
	id     int
	file   string // relative to the repository's root
	line   int
	within string // enclosing function
	change string
}

// key names a mutant in the list of explained ones, without line numbers, which change.
func (m *mutant) key() string { return m.file + " " + m.within + ": " + m.change }

// finder records a file's mutants, and the edits that insert all of them, inactive.
type finder struct {
	set     *token.FileSet
	info    *types.Info
	source  []byte
	file    string
	within  string
	next    int // id
	mutants []*mutant
	edits   []edit
	judged  map[ast.Expr]bool // truth values that have mutants already
}

var compared = map[token.Token][2]string{token.LSS: {"mutantLess", "<="}, token.LEQ: {"mutantAtMost", "<"},
	token.GTR: {"mutantMore", ">="}, token.GEQ: {"mutantAtLeast", ">"}}

var computed = map[token.Token][2]string{token.ADD: {"mutantAdd", "-"}, token.SUB: {"mutantSub", "+"}, token.MUL: {"mutantMul", "+"},
	token.QUO: {"mutantDiv", "*"}, token.REM: {"mutantMod", "/"}, token.AND: {"mutantAnd", "|"}, token.OR: {"mutantOr", "&"},
	token.XOR: {"mutantXor", "&"}}

func (f *finder) offset(p token.Pos) int { return f.set.Position(p).Offset }

func (f *finder) text(n ast.Node) string {
	return strings.Join(strings.Fields(string(f.source[f.offset(n.Pos()):f.offset(n.End())])), " ")
}

func short(s string) string {
	if r := []rune(s); len(r) > 100 {
		return string(r[:100]) + " ..."
	}
	return s
}

func (f *finder) note(n ast.Node, was, is string) int {
	f.next++
	f.mutants = append(f.mutants, &mutant{id: f.next, file: f.file, line: f.set.Position(n.Pos()).Line, within: f.within,
		change: short(was) + " -> " + short(is)})
	return f.next
}

func (f *finder) walk(file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			f.within = d.Name.Name
			if d.Recv != nil {
				f.within = strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*") + "." + d.Name.Name
			}
			ast.Inspect(d, f.visit)
		case *ast.GenDecl:
			if d.Tok == token.VAR {
				f.within = "var"
				ast.Inspect(d, f.visit)
			}
		}
	}
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.CaseClause:
		for _, e := range n.List {
			f.truth(e, true)
		}
		f.statements(n.Body)
	case *ast.CommClause:
		f.statements(n.Body)
	case *ast.IfStmt:
		f.truth(n.Cond, true)
	case *ast.ForStmt:
		if n.Cond != nil {
			f.truth(n.Cond, false)
		}
	case *ast.ReturnStmt:
		for _, e := range n.Results {
			f.truth(e, true)
		}
	case *ast.UnaryExpr:
		f.truth(n, true)
	case *ast.BinaryExpr:
		f.truth(n, true)
		f.arithmetic(n)
	case *ast.CallExpr:
		return f.call(n)
	}
	return true
}

// statements omits each statement that only has an effect.
func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if call, ok := s.X.(*ast.CallExpr); ok && f.untouched(call) {
				continue
			}
		case *ast.AssignStmt:
			if id, ok := s.Lhs[0].(*ast.Ident); s.Tok == token.DEFINE || ok && id.Name == "_" && len(s.Lhs) == 1 {
				continue
			}
		case *ast.BranchStmt:
			if s.Tok != token.BREAK && s.Tok != token.CONTINUE {
				continue
			}
		case *ast.IncDecStmt, *ast.SendStmt:
		default:
			continue
		}
		id := f.note(s, f.text(s), "")
		f.wrap(s, fmt.Sprintf("if !mutantIs(%d) { ", id), " }")
	}
}

// untouched calls have no effect for a test (logs), end the function, or are locks, which the race detector checks.
func (f *finder) untouched(call *ast.CallExpr) bool {
	switch name := types.ExprString(call.Fun); {
	case name == "panic", f.told(call):
		return true
	default:
		last := name[strings.LastIndex(name, ".")+1:]
		return last == "Lock" || last == "Unlock" || last == "RLock" || last == "RUnlock"
	}
}

// told reports whether the call makes text for people.
func (f *finder) told(call *ast.CallExpr) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if object := f.info.Uses[selector.Sel]; object != nil && object.Pkg() != nil {
		return object.Pkg().Path() == "log/slog" || object.Pkg().Path() == "fmt" && object.Name() == "Errorf"
	}
	return false
}

// truth replaces each operand of a truth value by true and by false.
func (f *finder) truth(e ast.Expr, both bool) {
	basic, ok := f.info.TypeOf(e).(*types.Basic)
	if !ok || basic.Info()&types.IsBoolean == 0 || f.judged[e] {
		return
	}
	f.judged[e] = true
	switch e := e.(type) {
	case *ast.ParenExpr:
		f.truth(e.X, both)
		return
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			f.truth(e.X, both)
			return
		}
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			f.truth(e.X, both)
			f.truth(e.Y, both)
			return
		}
	}
	text := f.text(e)
	switch {
	case text == "true":
		f.wrap(e, fmt.Sprintf("(!mutantIs(%d) && ", f.note(e, text, "false")), ")")
	case text == "false":
		f.wrap(e, fmt.Sprintf("(mutantIs(%d) || ", f.note(e, text, "true")), ")")
	case both:
		f.wrap(e, fmt.Sprintf("(mutantIs(%d) || !mutantIs(%d) && (", f.note(e, text, "true"), f.note(e, text, "false")), "))")
	default:
		f.wrap(e, fmt.Sprintf("(!mutantIs(%d) && (", f.note(e, text, "false")), "))")
	}
	if compares, ok := e.(*ast.BinaryExpr); ok {
		f.boundary(compares)
	}
}

func (f *finder) constant(e ast.Expr) bool { return f.info.Types[e].Value != nil }

// boundary exchanges < and <=.
func (f *finder) boundary(e *ast.BinaryExpr) {
	to, ok := compared[e.Op]
	if !ok || f.constant(e) {
		return
	}
	unsigned := func(x ast.Expr) bool {
		call, ok := x.(*ast.CallExpr)
		basic, _ := f.info.TypeOf(x).Underlying().(*types.Basic)
		return ok && types.ExprString(call.Fun) == "len" || basic != nil && basic.Info()&types.IsUnsigned != 0
	}
	zero := func(x ast.Expr) bool { return f.constant(x) && f.info.Types[x].Value.ExactString() == "0" }
	if unsigned(e.X) && zero(e.Y) || unsigned(e.Y) && zero(e.X) {
		return // otherwise one of the two would be constant
	}
	f.replace(e, to)
}

func (f *finder) arithmetic(e *ast.BinaryExpr) {
	to, ok := computed[e.Op]
	basic, _ := f.info.TypeOf(e).Underlying().(*types.Basic)
	if !ok || f.constant(e) || basic == nil || basic.Info()&types.IsNumeric == 0 {
		return
	}
	f.replace(e, to)
}

func (f *finder) replace(e *ast.BinaryExpr, to [2]string) {
	id := f.note(e, f.text(e), f.text(e.X)+" "+to[1]+" "+f.text(e.Y))
	f.wrap(e, fmt.Sprintf("%s(%d, ", to[0], id), ")")
	at := f.offset(e.OpPos)
	f.edits = append(f.edits, edit{at: at, until: at + len(e.Op.String()), text: ","})
}

// call mutates min and max, and skips the arguments of texts and the capacities of new slices.
func (f *finder) call(n *ast.CallExpr) bool {
	if f.told(n) {
		return false
	}
	id, ok := n.Fun.(*ast.Ident)
	if !ok {
		return true
	}
	if _, builtin := f.info.Uses[id].(*types.Builtin); !builtin {
		return true
	}
	other := map[string][2]string{"min": {"mutantMin", "max"}, "max": {"mutantMax", "min"}}
	switch {
	case id.Name == "make":
		_, isSlice := f.info.TypeOf(n).Underlying().(*types.Slice)
		if isSlice && len(n.Args) > 1 {
			ast.Inspect(n.Args[1], f.visit)
		}
		return false
	case len(other[id.Name][0]) > 0 && len(n.Args) > 1 && !f.constant(n):
		to := other[id.Name]
		number := f.note(n, f.text(n), to[1]+strings.TrimPrefix(f.text(n), id.Name))
		f.edits = append(f.edits, edit{at: f.offset(id.Pos()), until: f.offset(n.Lparen) + 1, text: fmt.Sprintf("%s(%d, ", to[0], number)})
	}
	return true
}
