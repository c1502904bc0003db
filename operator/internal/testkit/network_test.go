package testkit

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNetwork_WhenAllListenAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := Listen("")
		require.NoError(t, err)
		at := l.Addr().String()
		_, err = Listen(at)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		near, err := Dial(t.Context(), at)
		require.NoError(t, err)
		require.NoError(t, near.SetReadDeadline(time.Now().Add(time.Hour)))
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		far, err := l.Accept()
		require.NoError(t, err)
		_, err = near.Write([]byte("text"))
		require.NoError(t, err)
		require.NoError(t, near.Close())
		text, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Equal(t, "text", string(text))
		waiting, err := Dial(t.Context(), at) // nobody accepts it
		require.NoError(t, err)
		require.NoError(t, l.Close())
		_, err = waiting.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = Dial(t.Context(), at)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		l, err = Listen(at)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	})
}
