//! A kernel that writes to an address without memory, in a process of its own.

mod rig;

use rig::*;

#[test]
fn a_write_outside_all_memory_loses_the_device() {
    let rig = Rig::new();
    let poke = rig.function(&FAULT, c"poke");
    let (stream, at) = (rig.stream(), rig.memory(8));
    ok(rig.launch(poke, &[at + 4, 0x0807_0605], stream));
    assert_eq!(rig.read::<u8>(at, 8, stream), [0, 0, 0, 0, 5, 6, 7, 8]);
    ok(rig.launch(poke, &[at + 8, 1], stream));
    assert_eq!(rig.synchronize(stream), 700);
    // SAFETY: the call takes no pointer.
    assert_eq!(unsafe { (rig.driver.cuCtxSynchronize)() }, 700);
    assert!(
        rig.driver
            .words(700)
            .starts_with("CUDA_ERROR_ILLEGAL_ADDRESS")
    );
}
