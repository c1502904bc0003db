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

func TestNetworkListensDialsAndCloses(t *testing.T) {
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
		waiting, err := Dial(t.Context(), at) // never accepted
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

func TestConn_WhenDeadlinesAreSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := Listen("")
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		near, err := Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		far, err := l.Accept()
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, near.SetWriteDeadline(began.Add(time.Hour)))
		n, err := near.Write(make([]byte, bufferBytes+1)) // one byte more than fits
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, bufferBytes, n)
		require.Equal(t, time.Hour, time.Since(began))

		// A withdrawn deadline ends no later call.
		for range 100 {
			require.NoError(t, near.SetReadDeadline(time.Unix(1, 0)))
			require.NoError(t, near.SetReadDeadline(time.Time{}))
		}
		ended := make(chan error, 1)
		go func() {
			_, err := near.Read(make([]byte, 1))
			ended <- err
		}()
		synctest.Wait()
		require.Empty(t, ended)
		require.NoError(t, near.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-ended, os.ErrDeadlineExceeded)

		require.NoError(t, far.Close())
		_, err = near.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)
		require.NoError(t, near.Close())
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}
