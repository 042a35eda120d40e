package box

import "golang.org/x/sys/unix"

// systemCallABIs returns the ABIs of 64-bit programs and of i386 programs,
// which some tasks build.
func systemCallABIs() []abi {
	return []abi{
		{
			arch: unix.AUDIT_ARCH_X86_64, socket: unix.SYS_SOCKET, socketpair: unix.SYS_SOCKETPAIR, x32: true,
			denied: deniedHere(), foreign: foreignHere(),
		},
		{
			// Numbers of arch/x86/entry/syscalls/syscall_32.tbl, in the order of deniedHere.
			arch: unix.AUDIT_ARCH_I386, socket: 359, socketpair: 360, socketcall: 102,
			denied:  []uint32{286, 287, 288, 357, 336, 374, 128, 350, 129, 283, 342, 425, 426, 427},
			foreign: foreignCalls(340, 97, 289, 156, 154, 351),
		},
	}
}
