package pki

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func issue(t *testing.T, a *Folder, role string) Files {
	t.Helper()
	name := map[string]string{"agent/p0": "a0", "driver": "driver", "engine/p0": "e0"}[role]
	files, err := a.Issue(name, role, nil)
	require.NoError(t, err)
	return files
}

// shake returns the errors of client and server of one handshake.
func shake(t *testing.T, client, server *tls.Config) (error, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	done := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err == nil {
			conn := tls.Server(raw, server)
			err = conn.Handshake()
			_ = conn.Close() // the other side may have disconnected
		}
		done <- err
	}()
	raw, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	conn := tls.Client(raw, client)
	clientErr := conn.Handshake()
	_ = conn.Close() // the other side may have disconnected
	return clientErr, <-done
}

func TestRolesOfOneWorldTrustEachOther(t *testing.T) {
	a, err := OpenFolder(t.TempDir(), "w")
	require.NoError(t, err)
	client, err := Client(issue(t, a, "driver"), "w", "agent/")
	require.NoError(t, err)
	server, err := Server(issue(t, a, "agent/p0"), "w", "driver")
	require.NoError(t, err)
	c, s := shake(t, client, server)
	require.NoError(t, c)
	require.NoError(t, s)
}

func TestHandshake_WhenRoleOrAuthorityIsWrong(t *testing.T) {
	a, err := OpenFolder(t.TempDir(), "w")
	require.NoError(t, err)
	driver, agent, engine := issue(t, a, "driver"), issue(t, a, "agent/p0"), issue(t, a, "engine/p0")
	wantsAgent, err := Client(driver, "w", "agent/")
	require.NoError(t, err)
	isEngine, err := Server(engine, "w", "driver")
	require.NoError(t, err)
	c, _ := shake(t, wantsAgent, isEngine)
	require.ErrorContains(t, c, "want one that begins with spiffe://tangram/w/agent/")

	other, err := OpenFolder(t.TempDir(), "w")
	require.NoError(t, err)
	foreign, err := Client(issue(t, other, "driver"), "w", "agent/")
	require.NoError(t, err)
	isAgent, err := Server(agent, "w", "driver")
	require.NoError(t, err)
	c, s := shake(t, foreign, isAgent)
	require.Error(t, c)
	require.Error(t, s)
}

func TestOpenFolderKeepsAuthority(t *testing.T) {
	dir := t.TempDir()
	first, err := OpenFolder(dir, "w")
	require.NoError(t, err)
	again, err := OpenFolder(dir, "w")
	require.NoError(t, err)
	require.Equal(t, first.authority.BundlePEM(), again.authority.BundlePEM())
	_, err = OpenFolder(dir, "v")
	require.ErrorContains(t, err, `not the authority of world "v"`)
	_, err = again.Issue("x", "root", nil)
	require.ErrorContains(t, err, "unknown role")
	_, err = again.Issue("x", "agent/../driver", nil)
	require.Error(t, err)
}
