use sidestream::prelude::*;

fn main() -> sidestream::Result<()> {
    let device = Device::open("sim:h200")?;
    let (load, compute) = (device.stream("load")?, device.stream("compute")?);
    let square = Kernel::<(Read<f32>, Write<f32>)>::on_host("square", |_, (x, y)| {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x * x;
        }
    });

    let mut host = device.pinned(1024)?;
    host.fill(3.0);
    let (mut x, mut y) = (load.alloc(1024)?, compute.alloc(1024)?);
    let sent = load.upload(host, x.view_mut())?; // the device owns `host` now
    compute.launch(&square, Grid::cover(1024, 256), (x.view(), y.view_mut()))?; // waits for the upload
    let host = sent.synchronize()?; // gives it back
    let back = compute.download(y.view(), host)?; // after the kernel, on the same stream
    println!("{}", back.synchronize()?[7]); // 9
    Ok(())
}
