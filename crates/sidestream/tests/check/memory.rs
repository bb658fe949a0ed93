//! Bytes, their owners, and their lifetimes.

use super::{check, check_clean};

#[test]
fn conflicts_are_by_byte() {
    check_clean(
        "kernel s=s1 w=A[0:512]
         kernel s=s2 w=A[512:1024]",
    );
    check_clean(
        "kernel s=s1 w=A[0:512]
         kernel s=s2 w=A[7:7]",
    );
    check(
        "kernel s=s1 w=A[0:512]
         kernel s=s2 w=A[511:1024]
         kernel s=s3 r=A[600:601]",
        "WAW A 0 1 s1,s2: wait_stream s=s2 src=s1 before 1
         RAW A 1 2 s2,s3: wait_stream s=s3 src=s2 before 2",
    );
}

#[test]
fn the_halves_of_a_buffer_keep_their_own_past() {
    check(
        "buffer name=sums kind=dev bytes=4096
         kernel s=left w=sums[0:2048]
         record ev=l s=left
         wait s=total ev=l
         wait s=total ev=r
         kernel s=right w=sums[2048:4096]
         record ev=r s=right
         kernel s=total r=sums w=T",
        "RAW sums 4 6 right,total: wait_stream s=total src=right before 6
         WAIT_ON_UNRECORDED_EVENT 3",
    );
    // A write of the whole buffer by s1 makes the buffer one piece again.
    check(
        "kernel s=s1 w=A[0:100]
         kernel s=s1 w=A[300:400]
         kernel s=s1 w=A
         kernel s=s2 r=A",
        "RAW A 2 3 s1,s2: wait_stream s=s2 src=s1 before 3",
    );
}

#[test]
fn many_tiles_of_one_buffer() {
    let tile = |stream: &str, n: u32| format!("kernel s={stream} w=A[{}:{}]\n", n * 8, n * 8 + 8);
    let mut program: String = (0..128).map(|n| tile("s1", n * 37 % 128)).collect();
    program += "wait_stream s=s2 src=s1\n";
    program += &tile("s1", 70);
    program += "kernel s=s2 r=A\nkernel s=s2 w=A\nkernel s=s2 r=A";
    check(
        &program,
        "RAW A 129 130 s1,s2: wait_stream s=s2 src=s1 before 130
         WAW A 129 131 s1,s2: wait_stream s=s2 src=s1 before 131",
    );
}

#[test]
fn scratch_memory_on_the_wrong_stream() {
    check(
        "malloc_async buf=Q s=s1
         memset_async s=s2 to=Q
         wait_stream s=s2 src=s1
         kernel s=s2 r=Q w=A
         free_async buf=Q s=s1",
        "UBA Q 0 1 s1,s2: wait_stream s=s2 src=s1 before 1
         UAF Q 1 4 s2,s1: wait_stream s=s1 src=s2 before 4
         UAF Q 3 4 s2,s1: wait_stream s=s1 src=s2 before 4",
    );
    check_clean(
        "malloc_async buf=Q s=s1
         wait_stream s=s2 src=s1
         memset_async s=s2 to=Q
         kernel s=s2 r=Q w=A
         wait_stream s=s1 src=s2
         free_async buf=Q s=s1",
    );
}

#[test]
fn a_free_that_may_or_may_not_wait_is_a_warning() {
    check(
        "cuda_malloc buf=A
         kernel s=s1 w=A
         cuda_free buf=A",
        "UAF A 1 2 s1,t0: sync_stream st=s1 before 2 (warn)",
    );
    // Memory of cudaMallocAsync: the free does not wait. Pinned memory: not specified.
    check(
        "malloc_async buf=A s=s1
         kernel s=s1 w=A
         cuda_free buf=A
         copy_async s=s1 from=H to=B
         free_pinned buf=H",
        "UAF A 1 2 s1,t0: sync_stream st=s1 before 2
         UAF H 3 4 s1,t0: sync_stream st=s1 before 4",
    );
    // The free waits at most for the device, not for another thread.
    check(
        "host_write buf=M t=other
         cuda_free buf=M",
        "UAF M 0 1 other,t0: set_flag flag=done0 t=other after 0, wait_flag flag=done0 before 1",
    );
}

#[test]
fn the_next_tenant_of_the_bytes() {
    // The allocator saw the events of the free, but the use on s2 was not recorded.
    check(
        "alloc buf=A s=s1
         kernel s=s1 w=A
         wait_stream s=s2 src=s1
         kernel s=s2 r=A
         free buf=A
         alloc buf=B s=s1 over=A after_events=true
         kernel s=s1 w=B",
        "UAF B 3 6 s2,s1: record_stream buf=A st=s2 before 4",
    );
    // The events were not queried: only a wait helps.
    check(
        "alloc buf=A s=s1
         wait_stream s=s2 src=s1
         kernel s=s2 r=A
         free buf=A
         alloc buf=B s=s1 over=A[0:256]
         alloc buf=C s=s1 over=A[256:1024]
         kernel s=s1 w=C[0:10]
         kernel s=s1 r=B",
        "UAF C 2 6 s2,s1: wait_stream s=s1 src=s2 before 6",
    );
    check_clean(
        "alloc buf=A s=s1
         kernel s=s1 w=A
         wait_stream s=s2 src=s1
         kernel s=s2 r=A
         wait_stream s=s3 src=s2
         copy_async s=s3 from=A to=H
         record_stream buf=A st=s3
         free buf=A
         alloc buf=B s=s1 over=A after_events=true
         kernel s=s1 w=B",
    );
}

#[test]
fn tenants_of_parts_of_parts() {
    check(
        "kernel s=s1 w=A[700:701]
         alloc buf=B s=s2 over=A[512:1024]
         alloc buf=C s=s2 over=B[128:256]
         kernel s=s2 w=C[0:60]
         kernel s=s2 w=C",
        "UAF C 0 4 s1,s2: wait_stream s=s2 src=s1 before 4",
    );
}

#[test]
fn one_operation_that_names_the_bytes_twice() {
    check(
        "alloc buf=A s=s1
         kernel s=s1 w=A
         alloc buf=B s=s1 over=A
         kernel s=s2 w=A,B",
        "WAW A 1 3 s1,s2: wait_stream s=s2 src=s1 before 3
         UAF B 1 3 s1,s2: wait_stream s=s2 src=s1 before 3",
    );
}

#[test]
fn pageable_memory_is_a_warning() {
    check(
        "kernel s=s1 w=A
         record ev=done s=s1
         copy_async s=s1 from=A to=P
         sync_event ev=done
         host_read buf=P",
        "HOST_RAW P 2 4 s1,t0: sync_stream st=s1 before 4 (warn)
         UNPINNED_ASYNC_COPY 2",
    );
    // For copies between device buffers, pageable memory causes no warning.
    check(
        "copy_async s=s1 from=A to=P
         kernel s=s2 r=P",
        "RAW P 0 1 s1,s2: wait_stream s=s2 src=s1 before 1
         UNPINNED_ASYNC_COPY 0",
    );
}

#[test]
fn managed_memory_after_a_blocking_copy_between_devices() {
    check(
        "copy from=A to=M
         host_read buf=M
         copy_async s=s1 from=A to=M2
         host_read buf=M2",
        "HOST_RAW M 0 1 legacy,t0: sync_stream st=legacy before 1 (warn)
         HOST_RAW M2 2 3 s1,t0: sync_stream st=s1 before 3",
    );
}
