module tangram.dev/tests

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	tangram.dev/e2e v0.0.0
	tangram.dev/operator v0.0.0
	tangram.dev/proto v0.0.0
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
)

replace tangram.dev/operator => ../operator

replace tangram.dev/proto => ../proto

replace tangram.dev/e2e => ../e2e
