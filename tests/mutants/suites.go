package main

// suite is a package that is mutated, and the packages whose tests guard it.
type suite struct {
	name   string
	folder string   // relative to the module
	files  []string // empty: all
	guards []string // their tests run by `go test -short`: the same rules on fewer random worlds
}

var suites = []suite{
	{name: "checker", folder: "pkg/checker", guards: []string{"pkg/checker", "pkg/planner"}},
	{name: "layout", folder: "pkg/layout", guards: []string{"pkg/layout", "pkg/checker", "pkg/planner"}},
	{name: "fleet", folder: "pkg/fleet", guards: []string{"pkg/fleet"}},
	{name: "member", folder: "pkg/member", guards: []string{"pkg/member"}},
	{name: "bound", folder: "pkg/bound", guards: []string{"pkg/bound"}},
	{name: "planner", folder: "pkg/planner", guards: []string{"pkg/planner"}},
	{name: "placement", folder: "pkg/placement", guards: []string{"pkg/placement"}},
	{name: "migration", folder: "pkg/migration", guards: []string{"pkg/migration"}},
	{name: "telemetry", folder: "pkg/telemetry", guards: []string{"pkg/telemetry"}},
	{name: "rebalance", folder: "pkg/rebalance", guards: []string{"pkg/rebalance"}},
	{name: "driver", folder: "internal/driver", guards: []string{"internal/driver"},
		files: []string{"repair.go", "survivors.go", "fence.go", "resolve.go", "scene.go", "truth.go", "flip.go"}},
}
