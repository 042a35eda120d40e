package box

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// abi is one ABI for system calls on this processor, with the call numbers that
// the filter checks. A number of 0 means that the ABI has no such call.
type abi struct {
	arch       uint32
	socket     uint32
	socketpair uint32
	socketcall uint32 // multiplexes all socket calls; a filter cannot see the family
	x32        bool   // x32 calls use the same arch and set x32Bit in the number
	denied     []uint32
	foreign    []foreign
}

// foreign is a system call that changes a process, which the caller names. 0 is
// the caller itself.
type foreign struct {
	number uint32
	target uint32 // index of the argument that names the process
	users  uint32 // value of the argument before, for all processes of a user; 0: it has none
	reads  uint32 // index of an argument that is null if the call only reads; 0: it has none
}

// x32Bit marks system calls of the x32 ABI.
const x32Bit = 0x40000000

// socketFamilies are the families that programs in a sandbox need. Others, such
// as AF_VSOCK, AF_ALG and AF_PACKET, reach the host or seldom used kernel code.
func socketFamilies() []uint32 {
	return []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
}

// restrictSystemCalls installs a filter on this thread, which its child
// processes inherit. It allows sockets of socketFamilies only. It denies the
// kernel's keyrings, which have no namespaces, as well as BPF, perf events,
// kernel modules, kexec, file handles, userfaultfd, and io_uring, which could
// open any socket. If fenced is set, it also denies changes to the limits and the
// priority of a process other than the caller: among processes of one user the
// kernel allows them, and the box is a process of root. no_new_privs must be set.
func restrictSystemCalls(fenced bool) error {
	program := assemble(systemCallABIs(), fenced)
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("restrict system calls: %w", errno)
	}
	return nil
}

// Offsets in struct seccomp_data. An argument is a 64-bit value in the
// processor's byte order. Both processors are little-endian and a family fits
// into 32 bits, so the filter loads the lower half.
const (
	dataNumber   = 0
	dataArch     = 4
	dataArgument = 16
)

func statement(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func refuse(errno unix.Errno) unix.SockFilter {
	return statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ERRNO|uint32(errno))
}

// when skips the next n instructions if the comparison of the loaded value with
// k is false.
func when(compare uint16, k uint32, n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, K: k, Jf: uint8(n)}
}

// assemble builds the filter: a block for each ABI, and a refusal of all other
// ABIs.
func assemble(abis []abi, fenced bool) []unix.SockFilter {
	allow := statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW)
	families := []unix.SockFilter{load(dataArgument)}
	for _, f := range socketFamilies() {
		families = append(families, when(unix.BPF_JEQ, f, 1), allow)
	}
	families = append(families, refuse(unix.EAFNOSUPPORT))
	var program []unix.SockFilter
	for _, a := range abis {
		block := []unix.SockFilter{load(dataNumber)}
		if a.x32 {
			block = append(block, when(unix.BPF_JGE, x32Bit, 1), refuse(unix.ENOSYS))
		}
		for _, number := range a.denied {
			block = append(block, when(unix.BPF_JEQ, number, 1), refuse(unix.EPERM))
		}
		for _, f := range a.foreign {
			if fenced {
				block = append(block, f.fence()...)
			}
		}
		for _, number := range []uint32{a.socket, a.socketpair} {
			block = append(block, when(unix.BPF_JEQ, number, len(families)))
			block = append(block, families...)
		}
		if a.socketcall != 0 {
			const socket, socketpair = 1, 8
			block = append(block, when(unix.BPF_JEQ, a.socketcall, 5), load(dataArgument),
				when(unix.BPF_JEQ, socket, 1), refuse(unix.EPERM), when(unix.BPF_JEQ, socketpair, 1), refuse(unix.EPERM))
		}
		block = append(block, allow)
		program = append(program, load(dataArch), when(unix.BPF_JEQ, a.arch, len(block)))
		program = append(program, block...)
	}
	return append(program, refuse(unix.ENOSYS))
}

func load(offset uint32) unix.SockFilter {
	return statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, offset)
}

// fence refuses the call for a process other than the caller.
func (f foreign) fence() []unix.SockFilter {
	const size = 8 // of an argument
	allow := statement(unix.BPF_RET|unix.BPF_K, unix.SECCOMP_RET_ALLOW)
	var body []unix.SockFilter
	if f.users != 0 {
		body = append(body, load(dataArgument+(f.target-1)*size), when(unix.BPF_JEQ, f.users, 1), refuse(unix.EPERM))
	}
	body = append(body, load(dataArgument+f.target*size), when(unix.BPF_JEQ, 0, 1), allow)
	if f.reads != 0 {
		low := dataArgument + f.reads*size
		body = append(body, load(low), when(unix.BPF_JEQ, 0, 3), load(low+size/2), when(unix.BPF_JEQ, 0, 1), allow)
	}
	body = append(body, refuse(unix.EPERM))
	return append([]unix.SockFilter{when(unix.BPF_JEQ, f.number, len(body))}, body...)
}

// foreignCalls returns the calls with these numbers.
func foreignCalls(prlimit, setpriority, ioprio, scheduler, param, attr uint32) []foreign {
	return []foreign{
		{number: prlimit, reads: 2}, {number: setpriority, target: 1, users: unix.PRIO_USER}, {number: ioprio, target: 1, users: ioprioUser},
		{number: scheduler}, {number: param}, {number: attr},
	}
}

// ioprioUser is IOPRIO_WHO_USER of ioprio_set.
const ioprioUser = 3

// foreignHere returns the calls in the ABI of this binary.
func foreignHere() []foreign {
	return foreignCalls(unix.SYS_PRLIMIT64, unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET, unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETATTR)
}

// deniedHere returns the numbers of the denied system calls in the ABI of this
// binary.
func deniedHere() []uint32 {
	return []uint32{
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_OPEN_BY_HANDLE_AT,
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_KEXEC_FILE_LOAD,
	}
}
